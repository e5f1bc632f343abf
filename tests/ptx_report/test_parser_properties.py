"""What damage does to a log: never a crash, an invented value, or the loss of an intact kernel."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.ptxas.events import Statistics
from tests.ptx_report.samples import FIGURES, LOGS, facts, read


def frame(seed):
    spills = f"{seed + 1} bytes spill stores, {seed + 2} bytes spill loads"
    return f"    {seed} bytes stack frame, {spills}"


class Kernel:
    """One record: its lines, and the figures that they hold, which no other record shares."""

    def __init__(self, number, form):
        self.symbol = f"_Z9kernel{number:03d}IfEvPT_i"
        seed = 1000 + 7 * number
        self.truth = dict.fromkeys(FIGURES)
        self.truth.update(stack_frame=seed, spill_stores=seed + 1, spill_loads=seed + 2)
        used = f"Used {seed + 3} registers"
        self.truth["used_registers"] = seed + 3
        if form["barriers"]:
            used += f", used {seed + 4} barriers"
            self.truth["barriers"] = seed + 4
        if form["smem"]:
            used += f", {seed + 5} bytes smem"
            self.truth["smem"] = seed + 5
        arch = f"sm_{80 + 10 * form['arch']}"
        self.lines = [
            f"ptxas info    : Compiling entry function '{self.symbol}' for '{arch}'",
            f"ptxas info    : Function properties for {self.symbol}",
            frame(seed),
            f"ptxas info    : {used}",
        ]
        if form["time"]:
            self.lines.append(f"ptxas info    : Compile time = {seed + 6}.5 ms")
            self.truth["compile_time_ms"] = seed + 6.5

    def check(self, record):
        """No value of the record may be anything but the kernel's own or absent."""
        for figure in FIGURES:
            value = getattr(record, figure)
            assert value is None or value == self.truth[figure], (record.symbol, figure, value)

    def is_whole(self, record, figures=FIGURES):
        return all(getattr(record, figure) == self.truth[figure] for figure in figures)


class Helper:
    """A device function of its own."""

    def __init__(self, number):
        self.symbol = f"_Z6helper{number:03d}f"
        properties = f"ptxas info    : Function properties for {self.symbol}"
        self.lines = [properties, frame(500_000 + 7 * number)]


OTHER_LINES = st.sampled_from(
    [
        "[3/9] Building CXX object a.cpp.o",
        "g++ -O3 -Wall -c a.cpp -o a.o",
        "a.h(12): warning #177-D: variable was declared but never referenced",
        "",
        "nvcc -gencode arch=compute_80,code=sm_80 -Xptxas -v -c b.cu -o b.o",
        "ptxas info    : 0 bytes gmem",
        "ptxas warning : a warning that names nothing",
    ]
)


@st.composite
def logs(draw, first=0, most=6, time=None):
    """A log of one process: its kernels, and its lines as (owner or None, text)."""
    time = draw(st.booleans()) if time is None else time
    kernels, lines = [], [(None, "ptxas info    : 0 bytes gmem")]
    for number in range(first, first + draw(st.integers(1, most))):
        form = {
            "barriers": draw(st.booleans()),
            "smem": draw(st.booleans()),
            "arch": draw(st.integers(0, 1)),
            "time": time,
        }
        kernel = Kernel(number, form)
        kernels.append(kernel)
        lines += [(kernel, line) for line in kernel.lines]
        if draw(st.booleans()):
            function = Helper(number)
            lines += [(function, line) for line in function.lines]
        if draw(st.booleans()):
            lines.append((None, draw(OTHER_LINES)))
    return kernels, lines


def joined(lines):
    return "".join(f"{text}\n" for _, text in lines).encode()


def check(records, kernels, intact, seam=None, figures=FIGURES, before_seam=()):
    """No invented value; every intact kernel is there, whole, once. A number may be cut at a
    seam, and the last kernel of those before it may be marked, as lines behind may be its own."""
    by_symbol = {kernel.symbol: kernel for kernel in kernels}
    for record in records:
        at_seam = seam is not None and record.line <= seam < record.line + 5
        if record.symbol in by_symbol and not at_seam:
            by_symbol[record.symbol].check(record)
    whole = Counter(
        record.symbol
        for record in records
        if record.symbol in by_symbol and by_symbol[record.symbol].is_whole(record, figures)
    )
    marked = {record.symbol for record in records if record.incomplete}
    for kernel in intact:
        may_be_marked = kernel in before_seam[-1:] and kernel.symbol in marked
        assert whole[kernel.symbol] == 1 or may_be_marked, kernel.symbol


@given(logs())
def test_an_undamaged_log(log):
    kernels, lines = log
    records = read(joined(lines))
    check(records, kernels, kernels)
    ours = [record for record in records if record.kind == "kernel"]
    assert [record.symbol for record in ours] == [kernel.symbol for kernel in kernels]
    assert not any(record.incomplete for record in records)


@given(logs(), st.data())
def test_prefixes_and_chunks_do_not_matter(log, data):
    lines = log[1]
    ragged = [(owner, " " * data.draw(st.integers(0, 3)) + text) for owner, text in lines]
    straight, one_by_one = read(joined(lines)), read(joined(ragged))
    assert straight == one_by_one
    chunk = data.draw(st.integers(1, 400))
    assert read(joined(lines), chunk) == straight


@given(logs(), st.data())
def test_the_head_or_the_tail_is_cut_off(log, data):
    kernels, lines = log
    text = joined(lines)
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, len(text)))
    rest = text[begin:end]
    intact = [k for k in kernels if "\n".join(k.lines).encode() + b"\n" in rest]
    check(read(rest), kernels, intact)


@given(logs(most=8), st.data())
def test_a_piece_is_cut_out(log, data):
    """From within a line to within another; at lines' ends, a service leaves a mark."""
    kernels, lines = log
    text = joined(lines)
    begin = data.draw(st.integers(1, len(text) - 2))
    end = data.draw(st.integers(begin, len(text) - 1))
    left, right = text[:begin], text[end:]
    if left.endswith(b"\n") or right.startswith(b"\n") or text[end - 1 : end] == b"\n":
        left = left[: left.rfind(b"\n") + 1]
        right = b"[... %d bytes truncated ...]" % (end - begin) + right[right.find(b"\n") :]
    intact = [
        k
        for k in kernels
        if any("\n".join(k.lines).encode() + b"\n" in part for part in (left, right))
    ]
    before = [k for k in intact if "\n".join(k.lines).encode() + b"\n" in left]
    check(read(left + right), kernels, intact, left.count(b"\n") + 1, before_seam=before)


@given(st.booleans(), st.data())
def test_interleaved_line_by_line(time, data):
    one, two = data.draw(logs(0, time=time)), data.draw(logs(100, time=time))
    three = data.draw(logs(200, most=2, time=time))
    processes = [list(one[1]), list(two[1]), list(three[1])]
    kernels = one[0] + two[0] + three[0]
    mixed = []
    while any(processes):
        lines = data.draw(st.sampled_from([lines for lines in processes if lines]))
        for _ in range(data.draw(st.integers(1, 6))):
            if lines:
                mixed.append(lines.pop(0))
            if " Function properties for " in mixed[-1][1]:  # ptxas writes the next line with it
                mixed.append(lines.pop(0))
    records = read(joined(mixed))
    # A kernel is intact here if its lines stand together and no other kernel is open.
    intact = []
    opened = Counter()
    for index, (owner, _) in enumerate(mixed):
        if owner is None:
            continue
        if opened[owner] == 0:
            alone = all(count in (0, len(k.lines)) for k, count in opened.items())
            block = [text for _, text in mixed[index : index + len(owner.lines)]]
            if alone and block == owner.lines and owner in kernels:
                intact.append(owner)
        opened[owner] += 1
    # Compile times are given up first: functions may have some, so their lines cannot be counted.
    check(records, kernels, intact, figures=[f for f in FIGURES if f != "compile_time_ms"])
    entries = [record.symbol for record in records if record.kind == "kernel"]
    assert sorted(entries) == sorted(kernel.symbol for kernel in kernels)


@given(logs(most=8), st.data())
def test_corrupted_bytes(log, data):
    kernels, lines = log
    texts = [text.encode() for _, text in lines]
    hurt = set()
    places = st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=6, unique=True)
    for index in data.draw(places):
        text = texts[index]
        at = data.draw(st.integers(0, max(len(text) - 1, 0)))
        length = data.draw(st.integers(1, 3))
        junk = data.draw(st.sampled_from([b"\xff", b"?", b"#", b"\x00", b"\xc3\x28", b"~~~"]))
        texts[index] = text[:at] + junk + text[at + length :]
        hurt.add(lines[index][0])
    records = read(b"".join(text + b"\n" for text in texts))
    intact = [kernel for kernel in kernels if kernel not in hurt]
    by_symbol = {kernel.symbol: kernel for kernel in intact}
    check([r for r in records if r.symbol in by_symbol], kernels, intact)


@given(st.binary(max_size=2000), st.integers(1, 300))
def test_anything_at_all(data, chunk):
    for text in (data, b"ptxas info    : " + data, data + b" bytes stack frame, " + data):
        statistics = Statistics()
        records = read(text, chunk, statistics)
        assert statistics.bytes == len(text)
        named = (b"entry function '", b"' for 'sm_", b"Function prop")
        assert len(records) <= sum(text.count(words) for words in named)


@given(st.sampled_from(LOGS), st.data())
@settings(max_examples=settings.default.max_examples // 2)
def test_samples_cut_anywhere(path, data):
    text = path.read_bytes()
    end = data.draw(st.integers(0, len(text)))
    whole = {facts(record) for record in read(text)}
    records = read(text[:end])
    for record in records[:-2]:  # a device function may follow its kernel's cut lines
        assert facts(record) in whole
    assert text[:end].count(b"Compiling entry function '_") <= sum(
        record.kind == "kernel" for record in records
    ) + text[:end].count(b"function '\n")
