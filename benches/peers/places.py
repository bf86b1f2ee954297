"""Folders of the comparison."""

import os

HERE = os.path.dirname(os.path.abspath(__file__))
DRIVERS = f"{HERE}/drivers"
ROOT = os.path.dirname(os.path.dirname(HERE))
# Folder in which cargo builds, also for tickr itself.
BUILD = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", f"{ROOT}/target"))
# Packages from npm, logs and results.
OUTPUT = f"{ROOT}/target/compare"
NODE = f"{OUTPUT}/node"
