#!/bin/sh
# The WGSL of gated_rmsnorm on a real GPU through Vulkan: adapter, size of its subgroups, row sums
# compared bit for bit, and the rung of every case.  Nothing is downloaded.
#
#   [WHEELS=DIR] [DEBS=DIR] [OUT=DIR] sh tests/exhaustive/webgpu_h200.sh [PYTHON]
#
# WHEELS: wgpu, cffi, pycparser and rendercanvas as wheels for that Python; unset: they are there.
# DEBS: libvulkan1 and libegl1, libglvnd0, libopengl0, libgl1, libglx0, libgles2 as Debian packages,
#   unpacked into / (as root); unset: a Vulkan loader is there.
# OUT: gets webgpu_sums.json, webgpu_table.md and webgpu_cases.json.
# If no adapter is found: VK_DRIVER_FILES names the driver's nvidia_icd.json.
set -eu
repository=$(cd "$(dirname "$0")/../.." && pwd)
python="${1:-python3}"
out="${OUT:-.}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -n "${DEBS:-}" ]; then
  for package in "$DEBS"/*.deb; do dpkg -x "$package" /; done
  ldconfig
fi
if [ -n "${WHEELS:-}" ]; then
  "$python" -m pip install -q --no-index --find-links "$WHEELS" --no-deps --target "$work/wheels" \
    wgpu cffi pycparser rendercanvas
fi
# In a checkout goldens lies beside refkern; installed, it is inside.
mkdir "$work/refkern"
ln -s "$repository"/refkern/* "$work/refkern/"
ln -s "$repository/goldens" "$work/refkern/goldens"
export PYTHONPATH="$work:$work/wheels${PYTHONPATH:+:$PYTHONPATH}"
export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-$work}"

mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$work"  # in the checkout's root the plain refkern without goldens would be found first
"$python" -c 'from refkern.goldens.backends import load; print(load("webgpu").version())'
"$python" "$repository/tests/backends/webgpu_sums.py" | tee "$out/webgpu_sums.json"
"$python" "$repository/tests/exhaustive/backends_table.py" --backend webgpu \
  --json "$out/webgpu_cases.json" | tee "$out/webgpu_table.md"
