#!/usr/bin/env bash
# The client that oapi-codegen makes.
set -euo pipefail
command -v go >/dev/null || { printf '\n*** SKIPPED: there is no go ***\n\n' >&2; exit 0; }
made=$(mktemp -d) && trap 'rm -rf "$made"' EXIT
mkdir "$made/api" && cp scenario.go.txt "$made/main.go"
cd "$made"
export GOFLAGS=-mod=mod GOWORK=off CGO_ENABLED=0
go mod init scenario 2>/dev/null
go get -tool github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2 2>/dev/null
go tool oapi-codegen -generate types,client -package api -o api/api.go "$TOOLFLEET_OPENAPI"
go get github.com/oapi-codegen/runtime@v1.9.0 2>/dev/null
go run .
