#!/usr/bin/env bash
# The client of openapi-fetch, with the types that openapi-typescript makes.
set -euo pipefail
command -v npm >/dev/null || { printf '\n*** SKIPPED: there is no npm ***\n\n' >&2; exit 0; }
made=$(mktemp -d) && trap 'rm -rf "$made"' EXIT
cp scenario.ts "$made" && cd "$made"
echo '{"type": "module", "private": true}' >package.json
npm install --no-audit --no-fund --loglevel=error openapi-typescript@7.13.0 openapi-fetch@0.17.0 typescript@5.9.3 tsx@4.23.15 @types/node@20.19.43 >/dev/null
npx openapi-typescript "$TOOLFLEET_OPENAPI" -o openapi.ts >/dev/null
npx tsc --noEmit --strict --target es2022 --module nodenext --allowImportingTsExtensions --types node --skipLibCheck scenario.ts
npx tsx scenario.ts
