// Package aimocktest runs a model server that is not ours: aimock, which speaks
// OpenAI's HTTP API, streams and calls tools, and replies from fixtures. Tests
// against it show that the adapter and the server agree about the API, which a
// server written here, from the same understanding as the adapter, could not.
//
// The server is the npm package @copilotkit/aimock, pinned with its hash by the files in
// test/aimock. [Start] installs it on first use into the user's cache directory and
// runs it with node on a free loopback port. Where node, npm or the package cannot
// be had, it skips the test and says so on standard error; with
// TOOLFLEET_INTEGRATION=required it fails the test instead.
package aimocktest
