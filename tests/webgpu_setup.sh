#!/bin/sh
# Installs a WebGPU adapter for the tests where this can be done: wgpu-py, and on a Debian machine
# without a GPU Mesa's software Vulkan driver.  Exit code 0: an adapter with subgroups is there, and
# the tests can be run with REFKERN_REQUIRE_WEBGPU=1.  Otherwise they are skipped.
set -u
python="${1:-python3}"

"$python" -c 'import wgpu' 2>/dev/null || "$python" -m pip install -q wgpu || exit 1

has_adapter() {
  "$python" -c 'from refkern.goldens.backends import load; print(load("webgpu").version())'
}
has_adapter 2>/dev/null && exit 0

if command -v apt-get >/dev/null 2>&1; then
  as_root=""
  [ "$(id -u)" = 0 ] || as_root="sudo -n"
  $as_root apt-get update -qq
  $as_root apt-get install -y -qq --no-install-recommends mesa-vulkan-drivers libvulkan1
fi
has_adapter
