#!/usr/bin/env bash
# Looks for mistakes in the files of this folder: hadolint, the schemas of Compose and Kubernetes, and systemd where it is.
# Its tools come from Python's index, pinned, into target/lint.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=target/lint
if ! cmp --silent deploy/lint-requirements.txt $tools/requirements.txt; then
  rm -rf $tools
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target $tools \
    --requirement deploy/lint-requirements.txt
  cp deploy/lint-requirements.txt $tools/requirements.txt
fi
export PYTHONPATH=$PWD/$tools

# DL3008, DL3013: Debian's packages follow its releases; Python's are pinned in a file
$tools/bin/hadolint --ignore DL3008 --ignore DL3013 deploy/Dockerfile
$tools/bin/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
$tools/bin/kubernetes-validate --strict deploy/kubernetes.yaml
if command -v systemd-analyze >/dev/null; then
  unit=$(mktemp -d)
  trap 'rm -rf "$unit"' EXIT
  # the program is not installed here, and need not be
  sed 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' deploy/turbo.service >"$unit/turbo.service"
  systemd-analyze verify "$unit/turbo.service"
fi
