#!/bin/sh
# Is the client of a conformance suite: a coordinator ($COORDINATOR) with the suite's server ($1) as a server of tools,
# with somebody ($PERSON) in front of it who can be asked.
set -eu
HOME=$(mktemp -d)
export HOME TMPDIR="$HOME" TOOLFLEET_MIN_LEVEL=none
trap 'rm -rf "$HOME"' EXIT
printf '{"mcpServers": {"suite": {"url": "%s"}}}' "$1" >"$HOME/mcp.json"
fleet() {
  command=$1
  shift
  "$COORDINATOR" "$command" --mcp-config "$HOME/mcp.json" --sandbox process --allow-net all "$@"
}
case $MCP_CONFORMANCE_SCENARIO in
  initialize) fleet tools ;;
  tools_call) fleet call suite__add_numbers '{"a": 5, "b": 3}' ;;
  elicitation-*) TOOLFLEET_TEST_PERSON=1 "$PERSON" "$COORDINATOR" "$HOME/mcp.json" suite__test_client_elicitation_defaults ;;
  sse-retry) fleet call suite__test_reconnection ;;
  *) fleet call suite__test-tool ;;
esac
