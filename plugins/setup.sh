#!/bin/sh
# Builds the shipped policies: core modules for wasm32-unknown-unknown, then components in plugins/dist.
#
# Two ways to a compiler for the guests, tried in this order; PORTOLAN_GUEST_TOOLCHAIN=rustup or =debian forces one:
#   rustup  the target is there, or `rustup target add` brings it
#   debian  Debian's packages bring a compiler and the sources of the standard library, built here once
set -eu

target=wasm32-unknown-unknown
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
build=${CARGO_TARGET_DIR:-$here/target}
unset CARGO_TARGET_DIR
dist=${PLUGINS_DIST:-$here/dist}
packages="rustc-web cargo-web rust-web-src rust-web-llvm lld-22"

say() { printf 'plugins: %s\n' "$*"; }
fail() { printf 'plugins: %s\n' "$*" >&2; exit 1; }

has_rustup_target() {
    command -v rustc >/dev/null && [ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]
}

add_rustup_target() {
    command -v rustup >/dev/null || return 1
    say "adding the target $target to the toolchain"
    # A minute is ample for its 30 MB; a mirror without the target must not hold the build.
    timeout 60 rustup target add "$target" >/dev/null 2>&1
}

has_debian_packages() {
    [ -x /usr/bin/rustc ] && [ -x /usr/bin/cargo ] && [ -x /usr/bin/wasm-ld-22 ] &&
        [ -d "$(/usr/bin/rustc --print sysroot)/lib/rustlib/src/rust/library" ]
}

add_debian_packages() {
    command -v apt-get >/dev/null || return 1
    as_root=
    [ "$(id -u)" = 0 ] || as_root=sudo
    say "installing $packages"
    # shellcheck disable=SC2086 # a list of words
    $as_root apt-get install -qq --yes --no-install-recommends $packages >/dev/null 2>&1 ||
        { $as_root apt-get update -qq && $as_root apt-get install -qq --yes --no-install-recommends $packages >/dev/null; }
}

choose_toolchain() {
    case ${PORTOLAN_GUEST_TOOLCHAIN:-auto} in
        rustup) has_rustup_target || add_rustup_target ||
            fail "there is no target $target; run: rustup target add $target" ;;
        debian) has_debian_packages || add_debian_packages ||
            fail "there is no compiler for the guests; run: apt-get install $packages" ;;
        auto)
            if has_rustup_target || add_rustup_target; then PORTOLAN_GUEST_TOOLCHAIN=rustup
            elif has_debian_packages || add_debian_packages; then PORTOLAN_GUEST_TOOLCHAIN=debian
            else fail "there is no compiler for the guests; run: rustup target add $target" \
                "(or, on Debian: apt-get install $packages)"
            fi ;;
        *) fail "PORTOLAN_GUEST_TOOLCHAIN is rustup or debian, not $PORTOLAN_GUEST_TOOLCHAIN" ;;
    esac
}

build_guests() {
    # Panic messages hold source paths: name them alike on every machine.
    RUSTFLAGS="--remap-path-prefix=$root=portolan --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
    export RUSTFLAGS
    set -- build --quiet --release --target "$target" --target-dir "$modules" --locked \
        --workspace --exclude portolan-componentize
    case $PORTOLAN_GUEST_TOOLCHAIN in
        rustup) cargo "$@" ;;
        debian) RUSTC_BOOTSTRAP=1 RUSTC=/usr/bin/rustc RUSTDOC=/usr/bin/rustdoc \
            /usr/bin/cargo "$@" -Zbuild-std=std,panic_abort ;;
    esac
    unset RUSTFLAGS
}

shipped_modules() {
    for manifest in $(grep -l '^crate-type = \["cdylib"\]' ./*/Cargo.toml); do
        name=$(basename "$(dirname "$manifest")" | tr - _)
        printf '%s\n' "$modules/$target/release/$name.wasm"
    done
}

cd "$here"
choose_toolchain
modules=$build/$PORTOLAN_GUEST_TOOLCHAIN
say "building modules with the $PORTOLAN_GUEST_TOOLCHAIN toolchain"
build_guests || fail "the modules did not build"
say "building the componentize tool"
cargo build --quiet --locked --package portolan-componentize --target-dir "$build/tool" ||
    fail "the componentize tool did not build"
# shellcheck disable=SC2046 # one word a module
"$build/tool/debug/portolan-componentize" "$dist" $(shipped_modules)
say "$(find "$dist" -name '*.wasm' | wc -l) components in $dist"
