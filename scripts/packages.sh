#!/bin/sh
# Installs what the build and the tests need on Debian 12. Safe to repeat. Run as root or with sudo available.
set -eu
sudo=""
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "packages.sh: needs root, or sudo" >&2; exit 1; }
  sudo="sudo"
fi
packages="g++ cmake ninja-build pkg-config ccache nlohmann-json3-dev libcli11-dev libfmt-dev libutf8proc-dev
  liburing-dev libxxhash-dev libgtest-dev libgmock-dev libpcre2-dev python3 python3-pip unzip ca-certificates $*"
missing=""
for p in $packages; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q "ok installed" || missing="$missing $p"
done
if [ -n "$missing" ]; then
  echo "installing:$missing"
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
