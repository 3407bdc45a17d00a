#!/bin/sh
# Is the client of a conformance suite: a coordinator ($COORDINATOR) with the suite's server ($1) as a server of tools,
# with somebody ($PERSON) in front of it who can be asked, and who logs in.
set -eu
HOME=$(mktemp -d)
export HOME TMPDIR="$HOME" TOOLFLEET_MIN_LEVEL=none
trap 'rm -rf "$HOME"' EXIT
servers() { printf '{"mcpServers": {"suite": {"url": "%s", "oauth": %s}}}' "$1" "$2" >"$HOME/mcp.json"; }
servers "$1" null
fleet() {
  command=$1
  shift
  "$COORDINATOR" "$command" --mcp-config "$HOME/mcp.json" --sandbox process --allow-net all "$@"
}
# of is a value of the context that the suite gives.
of() { printf %s "$MCP_CONFORMANCE_CONTEXT" | sed -n 's/.*"'"$1"'":"\([^"]*\)".*/\1/p'; }
login() { TOOLFLEET_TEST_PERSON=login "$PERSON" "$COORDINATOR" "$HOME/mcp.json" suite; }
case $MCP_CONFORMANCE_SCENARIO in
  initialize) fleet tools ;;
  tools_call) fleet call suite__add_numbers '{"a": 5, "b": 3}' ;;
  elicitation-*) TOOLFLEET_TEST_PERSON=1 "$PERSON" "$COORDINATOR" "$HOME/mcp.json" suite__test_client_elicitation_defaults ;;
  sse-retry) fleet call suite__test_reconnection ;;
  auth/client-credentials-basic)
    SECRET=$(of client_secret)
    export SECRET
    servers "$1" '{"grantType": "client_credentials", "clientId": "'"$(of client_id)"'", "clientSecret": "${SECRET}"}'
    fleet call --mcp-env SECRET suite__test-tool
    ;;
  auth/client-credentials-jwt | auth/cross-app-access-complete-flow) fleet call suite__test-tool ;; # there is no such login
  auth/*)
    case $MCP_CONFORMANCE_SCENARIO in
      auth/pre-registration) servers "$1" '{"clientId": "'"$(of client_id)"'", "clientSecret": "'"$(of client_secret)"'"}' ;;
      auth/basic-cimd) servers "$1" '{"clientId": "https://conformance-test.local/client-metadata.json"}' ;;
    esac
    login
    fleet call suite__test-tool || { login && fleet call suite__test-tool; } # it may say what the login lacks
    ;;
  *) fleet call suite__test-tool ;;
esac
