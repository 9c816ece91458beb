#!/bin/sh
# Generates the code below api/ from its .proto files. The same inputs give the same bytes: the generators are pinned in
# tools/go.mod, buf here. Wants Go and npx.
set -eu
cd "$(dirname "$0")/.."
export GOTOOLCHAIN="${GOTOOLCHAIN:-go1.27.3}"
exec npx --yes @bufbuild/buf@1.75.0 generate "$@"
