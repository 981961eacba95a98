#!/usr/bin/env bash
# cosign v3.1.3, an image signed with a key pair, as a Sigstore bundle and with --tlog-upload=false. So no transparency log has an
# entry, and the bundle contains none.
# Expected: `cosign verify --insecure-ignore-tlog` does not list the log among the checks that it performed. It does not with
# --new-bundle-format=false.
# Seen: it lists "Existence of the claims in the transparency log was verified offline".
set -euo pipefail
folder=$(mktemp -d)
trap 'kill "${registry-}" 2>/dev/null || true; chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
cd "$folder"
export GOBIN=$folder GOFLAGS=-modcacherw
go install github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3
go install github.com/google/go-containerregistry/cmd/crane@v0.22.1
export HOME=$folder COSIGN_PASSWORD=
./crane registry serve --address 127.0.0.1:0 2>log &
registry=$!
for _ in {1..100}; do grep -q 'serving on port' log && break; sleep 0.1; done
host=127.0.0.1:$(grep -o '[0-9]*$' log | head -1)
echo x >program && tar -cf layer.tar program
image=$(./crane append --new_layer layer.tar --new_tag "$host/it:1")
./cosign generate-key-pair
sign() { ./cosign sign --yes --key cosign.key --use-signing-config=false --tlog-upload=false "$@" "$image"; }
verify() { ./cosign verify --key cosign.pub --insecure-ignore-tlog "$@" "$image" 2>&1 >/dev/null | tee seen; }
words='Existence of the claims in the transparency log was verified offline'
sign
verify
grep -q "$words" seen
sign --new-bundle-format=false
verify --new-bundle-format=false
! grep -q "$words" seen
