#!/usr/bin/env bash
# Checks the package: what is generated is current, types, tests against bin/coordinator; then packs it, installs it
# in a fresh folder and uses it there. Without node 20 or npm it says so, and checks nothing.
set -euo pipefail
cd "$(dirname "$0")"

major=$(node --version 2>/dev/null | sed -E 's/^v([0-9]+).*/\1/' || true)
if [ "${major:-0}" -lt 20 ] || ! command -v npm >/dev/null; then
  [ "${TOOLFLEET_INTEGRATION:-}" = required ] && { echo "sdk/typescript: node 20 or later and npm are required" >&2; exit 1; }
  printf '\n*** sdk/typescript SKIPPED: node 20 or later and npm are needed ***\n\n' >&2
  exit 0
fi
export TOOLFLEET_COORDINATOR=${TOOLFLEET_COORDINATOR:-$PWD/../../bin/coordinator}
examples=$PWD/examples
quiet=(--no-audit --no-fund --loglevel=error)

npm ci "${quiet[@]}" --ignore-scripts
npm run -s check
npm run -s build # the examples use the package by its name
npm run -s types
npm run -s test

fresh=$(mktemp -d) && trap 'rm -rf "$fresh"' EXIT
npm pack --silent --pack-destination "$fresh" >/dev/null

# The laws of calls, by the test that handlers in Go are held against, while workers, the server and the tool are killed.
mkdir "$fresh/tools"
npm install "${quiet[@]}" --prefix "$fresh/tools" "$fresh"/toolfleet-*.tgz @modelcontextprotocol/sdk@1.32.2 >/dev/null
cp ../../test/blackbox/testdata/effects.mjs "$fresh/tools/effects-$$.mjs"
(cd ../.. && go test ./test/blackbox -run TestRun_LawsHoldForTools -count=1 -v -args -bin="$PWD/bin" -tools="$fresh/tools" \
  -serve='["node", "{tools}/node_modules/toolfleet/dist/cli.js", "serve", "{tools}/effects-'$$'.mjs"]')

mkdir "$fresh/use" && cp smoke.mjs "$fresh/use/" && cd "$fresh/use"
npm init -y >/dev/null
npm install "${quiet[@]}" "$fresh"/toolfleet-*.tgz
node smoke.mjs
for runtime in deno bun; do # with their scripts, which put the program in its place
  if npm install "${quiet[@]}" --prefix "$fresh/$runtime" "$runtime" >/dev/null 2>&1 && "$fresh/$runtime/node_modules/.bin/$runtime" --version >/dev/null 2>&1; then
    flags=() && [ "$runtime" = deno ] && flags=(run --allow-all --no-lock)
    "$fresh/$runtime/node_modules/.bin/$runtime" "${flags[@]}" smoke.mjs
  else
    printf '\n*** %s SKIPPED: it cannot be installed from npm ***\n\n' "$runtime" >&2
  fi
done

# The Claude Agent SDK brings a program of 250 MB: so it is no package of the tests.
mkdir "$fresh/claude" "$fresh/home" && cp "$examples/claude-agent.mjs" "$fresh/claude/" && cd "$fresh/claude"
npm init -y >/dev/null
if npm install "${quiet[@]}" @anthropic-ai/claude-agent-sdk@0.3.332 zod@4.6.7 >/dev/null 2>&1; then
  said=$(HOME=$fresh/home timeout 300 node claude-agent.mjs)
  case $said in *"hi from the fleet"*) echo "claude-agent-sdk: the example ran" ;; *) echo "claude-agent-sdk: $said" >&2 && exit 1 ;; esac
else
  printf '\n*** claude-agent-sdk SKIPPED: it cannot be installed from npm ***\n\n' >&2
fi
