package check

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
)

// steps are the commands with which the page begins, as they stand there.
func steps(t *testing.T) string {
	t.Helper()
	before, _, _ := strings.Cut(read(t, "../../../docs/operations/compose.md"), "\n## ")
	var text strings.Builder
	for line := range strings.Lines(before) {
		if command, is := strings.CutPrefix(line, "    "); is {
			text.WriteString(command)
		}
	}
	return text.String()
}

// standIn edits .env as a person does, and for what a container executes runs its program with its
// environment.
const standIn = `#!/bin/bash
set -eu
echo "${0##*/} $*" >>"$CALLS"
case "${0##*/} $*" in
"vi .env") sed -i "s|^TOOLFLEET_MODEL=|&script:$SCRIPT|" .env ;;
"docker compose up "*) [ -f .env ] && [ -f calls.key ] && [ -f calls.pub ] ;;
"docker compose exec coordinator coordinator "*) shift 4; exec env -i $(cat "$CONTAINER") "$BIN/coordinator" "$@" ;;
*) echo "not known: ${0##*/} $*" >&2; exit 1 ;;
esac
`

// TestPage_StepsLeadToAFirstSubmit runs the commands of the page, in a copy of deploy. Docker and
// the editor are stand-ins; the keys, the compose file and the fleet are real.
func TestPage_StepsLeadToAFirstSubmit(t *testing.T) { // not parallel: the server's configuration reads this process's environment
	for _, program := range []string{"bash", "openssl", "sed"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("NOT TESTED: %s is not installed", program)
		}
	}
	root, bin := t.TempDir(), t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(root, "deploy"), os.DirFS("../..")))
	dir, container, script := filepath.Join(root, "deploy/compose"), filepath.Join(bin, "container"), filepath.Join(bin, "script.json")
	require.NoError(t, os.WriteFile(script,
		[]byte(`{"steps": [{"tool_calls": [{"id": "c1", "name": "bash", "arguments": {"command": "echo $((40 + 2)); ls"}}]}, {"text": "Hello."}]}`),
		0o600))
	for _, program := range []string{"docker", "vi"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, program), []byte(standIn), 0o700))
	}
	run := func(commands string) string {
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", commands)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "BIN="+bin, "CALLS="+filepath.Join(bin, "calls"), "CONTAINER="+container, "SCRIPT="+script)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	before, after, found := strings.Cut(steps(t), "docker compose exec")
	require.True(t, found)
	run(before)

	env, err := dotenv.Read(filepath.Join(dir, ".env"))
	require.NoError(t, err)
	require.Regexp(t, `^tf-[0-9a-f]{48}$`, env["FLEET_PASSWORD"])
	require.Regexp(t, `^tf-[0-9a-f]{48}$`, env["WORKER_PASSWORD"])
	require.Regexp(t, `^tf-[0-9a-f]{48}$`, env["READER_PASSWORD"])
	require.NotEqual(t, env["FLEET_PASSWORD"], env["WORKER_PASSWORD"])
	require.NotEqual(t, env["WORKER_PASSWORD"], env["READER_PASSWORD"])
	requirePair(t, read(t, filepath.Join(dir, "calls.key")), read(t, filepath.Join(dir, "calls.pub")))
	var variables []string
	for name, value := range env {
		variables = append(variables, name+"="+value)
	}
	fleet, err := loadFiles(t.Context(), []string{filepath.Join(dir, "compose.yaml")}, variables...)
	require.NoError(t, err)

	startFleet(t, bin, container, fleet, env)
	require.Eventually(t, func() bool {
		out, err := exec.CommandContext(t.Context(), "env",
			append(append([]string{"-i"}, strings.Fields(read(t, container))...), filepath.Join(bin, "coordinator"), "workers")...).Output()
		return err == nil && bytes.Contains(out, []byte(" full"))
	}, time.Minute, 100*time.Millisecond, "no worker of level full")
	out := run("docker compose exec" + after)
	require.Contains(t, out, "42")
	require.Contains(t, out, "Hello.")
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

// requirePair wants a private key, and its public one.
func requirePair(t *testing.T, private, public string) {
	t.Helper()
	block, _ := pem.Decode([]byte(private))
	require.NotNil(t, block)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	require.NoError(t, err)
	key, is := parsed.(ed25519.PrivateKey)
	require.True(t, is)
	block, _ = pem.Decode([]byte(public))
	require.NotNil(t, block)
	theirs, err := x509.ParsePKIXPublicKey(block.Bytes)
	require.NoError(t, err)
	require.True(t, key.Public().(ed25519.PublicKey).Equal(theirs))
}

// startFleet starts the NATS server, and a coordinator and a worker with the arguments and the
// environment that their containers have, but for places. It writes the environment of the
// coordinator's container to a file.
func startFleet(t *testing.T, bin, container string, fleet *types.Project, env map[string]string) {
	t.Helper()
	build := exec.CommandContext(t.Context(), "go", "-C", "../../..", "build", "-trimpath", "-o", bin+"/", "./cmd/coordinator", "./cmd/worker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	if out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "worker"), "--sandbox-check").CombinedOutput(); err != nil {
		t.Skipf("NOT TESTED further than the compose file: no sandbox of level full here: %s", out)
	}
	t.Setenv("FLEET_PASSWORD", env["FLEET_PASSWORD"])
	t.Setenv("WORKER_PASSWORD", env["WORKER_PASSWORD"])
	t.Setenv("READER_PASSWORD", env["READER_PASSWORD"])
	options, err := server.ProcessConfigFile(configuration(t))
	require.NoError(t, err)
	broker := start(t, options)
	require.True(t, broker.ReadyForConnections(time.Minute))
	for _, name := range []string{"coordinator", "worker"} {
		service := fleet.Services[name]
		variables := []string{"PATH=" + os.Getenv("PATH")}
		for variable, value := range service.Environment {
			switch {
			case value == nil || strings.HasPrefix(variable, "OTEL_"):
				continue
			case variable == "TOOLFLEET_DATA":
				*value = t.TempDir()
			case strings.HasPrefix(*value, "/run/secrets/"):
				*value = fleet.Secrets[strings.TrimPrefix(*value, "/run/secrets/")].File
			}
			variables = append(variables, variable+"="+strings.Replace(*value, "@nats:4222", "@"+broker.Addr().String(), 1))
		}
		if name == "coordinator" {
			require.NoError(t, os.WriteFile(container, []byte(strings.Join(variables, "\n")), 0o600))
		}
		begin(t, variables, filepath.Join(bin, name), service.Command...)
	}
}

// begin starts a program again whenever it ends, as the engine does, until the test ends.
func begin(t *testing.T, env []string, program string, args ...string) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for t.Context().Err() == nil {
			cmd := exec.CommandContext(t.Context(), program, args...)
			cmd.Env = env
			out, err := cmd.CombinedOutput()
			if t.Context().Err() == nil {
				t.Logf("%s ended: %v: %s", filepath.Base(program), err, out)
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	t.Cleanup(func() { <-done }) // t.Context has ended by then
}
