#!/usr/bin/env bash
# package.sh IMAGE FOLDER: packages the Helm chart into FOLDER, with IMAGE (REGISTRY/NAME@DIGEST, as printed by push.sh) as the
# default. The same chart and IMAGE give the same bytes, so a repeated release pushes the same digest. Needs Helm 4: Helm 3 writes the
# time into the archive.
set -euo pipefail

[ $# = 2 ] && [[ $1 =~ ^.+/.+@sha256:[0-9a-f]{64}$ ]] || { echo "usage: package.sh REGISTRY/NAME@DIGEST FOLDER" >&2; exit 2; }
image=$1 folder=$(realpath "$2")
chart=$(mktemp -d)
trap 'rm -rf "$chart"' EXIT
cp -r "$(dirname "${BASH_SOURCE[0]}")/chart/." "$chart"
sed -i -e "s|^  repository: .*|  repository: ${image%@*}|" -e "s|^  digest: .*|  digest: ${image#*@}|" "$chart/values.yaml"
# Helm writes the times of the files into the archive, and the time of the archive into the registry.
find "$chart" -exec touch --date=@0 {} +
helm package "$chart" --destination "$folder"
touch --date=@0 "$folder/$(sed -n 's/^name: //p' "$chart/Chart.yaml")-$(sed -n 's/^version: //p' "$chart/Chart.yaml").tgz"
