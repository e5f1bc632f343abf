raise RuntimeError("run")
