#!/usr/bin/env bash
# The SDK for TypeScript of this repository.
set -euo pipefail
command -v npm >/dev/null || { printf '\n*** SKIPPED: there is no npm ***\n\n' >&2; exit 0; }
made=$(mktemp -d) && trap 'rm -rf "$made"' EXIT
quiet=(--no-audit --no-fund --loglevel=error)
(cd ../../../../sdk/typescript && npm ci "${quiet[@]}" --ignore-scripts >/dev/null && npm pack --silent --pack-destination "$made" >/dev/null)
cp scenario.ts "$made" && cd "$made"
echo '{"type": "module", "private": true}' >package.json
npm install "${quiet[@]}" ./toolfleet-*.tgz typescript@5.9.3 tsx@4.23.15 @types/node@20.19.43 >/dev/null
npx tsc --noEmit --strict --target es2022 --module nodenext --types node scenario.ts
npx tsx scenario.ts
