.venv/
build/
dist/
__pycache__/
*.egg-info/
