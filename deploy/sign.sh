#!/usr/bin/env bash
# sign.sh REGISTRY/NAME@DIGEST [FOLDER]: signs an index of images (as printed by push.sh) with its images, or a chart. The version in
#   Cargo.toml is an annotation of the signature. Attestations come first, so a signed name has all of them:
#   - In a workflow of GitHub, the provenance, as https://actions.github.io/buildtypes/workflow/v1 describes it. That build type is
#     for four events only. In a reusable workflow, the provenance would name the caller as the builder: do not sign there.
#   - With FOLDER, the bill of materials of each image: FOLDER/sbom.cdx.json for amd64, FOLDER/sbom-ARCHITECTURE.cdx.json for others.
# sign.sh FILE...: signs files, each in the bundle FILE.sigstore.json.
#
# COSIGN_KEY is the private key: a file, a URL of a KMS, or env://VARIABLE. Nothing is written to a transparency log. Without
# COSIGN_KEY the signatures are keyless: Sigstore certifies the identity of the caller (on GitHub the workflow, which needs the
# permission `id-token: write`) and logs each signature in public. Needs cosign 3.0.5 or later; jq for provenance; skopeo and jq with
# FOLDER.
set -euo pipefail

fail() { echo "sign.sh: $*" >&2; exit 1; }
[ $# -ge 1 ] || { echo "usage: sign.sh REGISTRY/NAME@DIGEST [FOLDER], or sign.sh FILE..." >&2; exit 2; }
# cosign takes each option also from a variable. So the commands below are the same with and without a key.
export COSIGN_YES=true
[ -z "${COSIGN_KEY-}" ] || export COSIGN_USE_SIGNING_CONFIG=false COSIGN_TLOG_UPLOAD=false

if [[ $1 != *@sha256:* ]]; then
  for file in "$@"; do
    [ -f "$file" ] || fail "$file: no such file"
  done
  for file in "$@"; do
    cosign sign-blob --bundle "$file.sigstore.json" "$file" >/dev/null
  done
  exit
fi

name=$1 folder=${2-}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$(dirname "${BASH_SOURCE[0]}")/../Cargo.toml")

# All files, and an event of the build type, must be there before the first attestation.
if [ -n "${GITHUB_ACTIONS-}" ]; then
  case ${GITHUB_EVENT_NAME-} in
    create | release | push | workflow_dispatch) ;;
    *) fail "no provenance for the event \"${GITHUB_EVENT_NAME-}\": its build type is for create, release, push and workflow_dispatch" ;;
  esac
fi
declare -A sboms=()
if [ -n "$folder" ]; then
  images=$(skopeo inspect --raw "docker://$name" | jq --raw-output '.manifests[] | "\(.platform.architecture) \(.digest)"')
  while read -r architecture digest; do
    file=$folder/sbom-$architecture.cdx.json
    [ "$architecture" != amd64 ] || file=$folder/sbom.cdx.json
    [ -f "$file" ] || fail "$file: no such file, the bill of materials of the image for $architecture"
    sboms[${name%@*}@$digest]=$file
  done <<<"$images"
fi
for image in "${!sboms[@]}"; do
  cosign attest --type cyclonedx --predicate "${sboms[$image]}" "$image"
done

if [ -n "${GITHUB_ACTIONS-}" ]; then
  provenance=$(jq --null-input '
    def variable($name): $ENV[$name] // error("\($name) is not set");
    "\(variable("GITHUB_SERVER_URL"))/\(variable("GITHUB_REPOSITORY"))" as $repository
    | variable("GITHUB_REF") as $ref
    | variable("GITHUB_WORKFLOW_REF") as $workflow
    | {
        buildDefinition: {
          buildType: "https://actions.github.io/buildtypes/workflow/v1",
          externalParameters: {
            workflow: {
              ref: $ref,
              repository: $repository,
              path: $workflow | ltrimstr("\(variable("GITHUB_REPOSITORY"))/") | rtrimstr("@\($ref)"),
            },
          },
          internalParameters: {github: {
            event_name: variable("GITHUB_EVENT_NAME"),
            repository_id: variable("GITHUB_REPOSITORY_ID"),
            repository_owner_id: variable("GITHUB_REPOSITORY_OWNER_ID"),
            runner_environment: variable("RUNNER_ENVIRONMENT"),
          }},
          resolvedDependencies: [{uri: "git+\($repository)@\($ref)", digest: {gitCommit: variable("GITHUB_SHA")}}],
        },
        runDetails: {
          builder: {id: "\(variable("GITHUB_SERVER_URL"))/\($workflow)"},
          metadata: {
            invocationId: "\($repository)/actions/runs/\(variable("GITHUB_RUN_ID"))/attempts/\(variable("GITHUB_RUN_ATTEMPT"))",
          },
        },
      }')
  cosign attest --type slsaprovenance1 --predicate - "$name" <<<"$provenance"
fi
cosign sign --recursive -a "version=$version" "$name"
