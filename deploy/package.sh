#!/usr/bin/env bash
# package.sh IMAGE FOLDER: packages the Helm chart into FOLDER, with IMAGE (REGISTRY/NAME@DIGEST, as printed by push.sh) as the
# default. Needs helm.
set -euo pipefail

[ $# = 2 ] && [[ $1 =~ ^.+/.+@sha256:[0-9a-f]{64}$ ]] || { echo "usage: package.sh REGISTRY/NAME@DIGEST FOLDER" >&2; exit 2; }
image=$1 folder=$(realpath "$2")
chart=$(mktemp -d)
trap 'rm -rf "$chart"' EXIT
cp -r "$(dirname "${BASH_SOURCE[0]}")/chart/." "$chart"
sed -i -e "s|^  repository: .*|  repository: ${image%@*}|" -e "s|^  digest: .*|  digest: ${image#*@}|" "$chart/values.yaml"
helm package "$chart" --destination "$folder"
