repos:
  - repo: local
    hooks:
      - id: generated
        name: the generated tree is that of the specs
        entry: kernelmint check
        language: system
        pass_filenames: false
        files: ^(kernel_specs|generated)/
