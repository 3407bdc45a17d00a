// Package aimocktest runs a model server that is not ours: aimock, which speaks OpenAI's HTTP API,
// streams and calls tools, and replies from fixtures. Tests against it show that the adapter and
// the server agree about the API, which a server written here, from the same understanding as the
// adapter, could not.
//
// The server is the npm package @copilotkit/aimock, pinned by the files in test/aimock and
// installed by package npmtest. [Start] runs it with node on a free loopback port; where it cannot
// be had, the test is skipped, or with TOOLFLEET_INTEGRATION=required fails.
package aimocktest
