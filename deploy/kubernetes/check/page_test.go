package check

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// steps are the commands of the page, as they stand there.
func steps(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/operations/kubernetes.md")
	require.NoError(t, err)
	before, _, _ := strings.Cut(string(page), "\n## ")
	var text strings.Builder
	for line := range strings.Lines(before) {
		if command, is := strings.CutPrefix(line, "    "); is {
			text.WriteString(command)
		}
	}
	return text.String()
}

// standIn writes down how it was called. It edits secrets.yaml as a person does, and for what a pod
// executes runs the pod's program with its environment.
const standIn = `#!/bin/bash
set -eu
echo "${0##*/} $*" >>"$CALLS"
case "${0##*/} $*" in
"vi secrets.yaml") sed -i "s|openai:NAME|script:$SCRIPT|; s|sk-CHANGE|sk-none|" secrets.yaml ;;
"helm "*" -f "*) [ -f nats-values.yaml ] ;;
"docker build "*) [ -f "$3" ] && [ -d "${!#}" ] && grep -q " AS $5\$" "$3" ;;
"kubectl "*"--from-file="*) file=${!#} && [ -f "${file#--from-file=}" ] ;;
"kubectl apply -f "*) [ -f "$3" ] && [ -f "$5" ] ;;
"kubectl "*" exec deployment/coordinator -- "*) shift 5; exec env -i $(cat "$PODS") "$BIN/${1#/usr/local/bin/}" "${@:2}" ;;
esac
`

// TestPage_StepsLeadToAFirstSubmit runs the commands of the page, in a copy of deploy. Registry,
// cluster and editor are stand-ins; the keys, the secrets, the manifests and the fleet are real.
func TestPage_StepsLeadToAFirstSubmit(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"bash", "openssl", "sed"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("NOT TESTED: %s is not installed", program)
		}
	}
	root, bin := t.TempDir(), t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(root, "deploy"), os.DirFS("../..")))
	dir, calls, pods, script := filepath.Join(root, "deploy/kubernetes"), filepath.Join(bin, "calls"), filepath.Join(bin, "pods"), filepath.Join(bin, "script.json")
	require.NoError(t, os.WriteFile(script,
		[]byte(`{"steps": [{"tool_calls": [{"id": "c1", "name": "bash", "arguments": {"command": "echo $((40 + 2)); ls"}}]}, {"text": "Hello."}]}`),
		0o600))
	for _, program := range []string{"docker", "helm", "kubectl", "vi"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, program), []byte(standIn), 0o700))
	}
	run := func(commands string) string {
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", commands)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "BIN="+bin, "CALLS="+calls, "PODS="+pods, "SCRIPT="+script)
		out, err := cmd.CombinedOutput()
		called, _ := os.ReadFile(calls)
		require.NoError(t, err, "%s%s", called, out)
		return string(out)
	}
	before, after, found := strings.Cut(steps(t), "kubectl -n toolfleet rollout")
	require.True(t, found)
	run(strings.ReplaceAll(before, "registry.example/toolfleet", "registry.test:5000/of/mine"))

	built := objectsIn(t, dir)
	secrets := secretsOf(t, filepath.Join(dir, "secrets.yaml"))
	called, err := os.ReadFile(calls)
	require.NoError(t, err)
	for _, name := range []string{"coordinator", "worker"} {
		image := podOf(t, built, name).Containers[0].Image
		require.Equal(t, "registry.test:5000/of/mine/"+name+":v0.1.0", image)
		require.Contains(t, string(called), " --target "+name+" -t "+image+" ", "it is built")
		require.Contains(t, string(called), "docker push "+image+"\n")
	}
	server := secrets["toolfleet-nats"]
	require.Regexp(t, `^tf-[0-9a-f]{48}$`, server["fleet"])
	require.Regexp(t, `^tf-[0-9a-f]{48}$`, server["worker"])
	require.Regexp(t, `^tf-[0-9a-f]{48}$`, server["reader"])
	require.NotEqual(t, server["fleet"], server["worker"])
	require.NotEqual(t, server["worker"], server["reader"])
	require.Equal(t, "nats://fleet:"+server["fleet"]+"@nats:4222", secrets["toolfleet-coordinator"]["nats"])
	require.Equal(t, "default=nats://fleet_default:"+server["fleet"]+"@nats:4222", secrets["toolfleet-coordinator"]["pool-nats"])
	require.Equal(t, "nats://worker:"+server["worker"]+"@nats:4222", secrets["toolfleet-worker"]["nats"])
	requirePair(t, secrets["toolfleet-coordinator"]["calls.key"], secrets["toolfleet-worker"]["calls.pub"])

	startFleet(t, bin, pods, built, secrets)
	require.Eventually(t, func() bool {
		out, err := exec.CommandContext(t.Context(), "env",
			append(append([]string{"-i"}, strings.Fields(read(t, pods))...), filepath.Join(bin, "coordinator"), "workers")...).Output()
		return err == nil && bytes.Contains(out, []byte(" full"))
	}, time.Minute, 100*time.Millisecond, "no worker of level full")
	out := run("kubectl -n toolfleet rollout" + after)
	require.Contains(t, out, "42")
	require.Contains(t, out, "Hello.")
}

// secretsOf reads secrets as the API does.
func secretsOf(t *testing.T, path string) map[string]map[string]string {
	t.Helper()
	all := map[string]map[string]string{}
	for document := range strings.SplitSeq(read(t, path), "\n---\n") {
		secret, is := decode(t, []byte(document)).(*corev1.Secret)
		require.True(t, is)
		all[secret.Name] = secret.StringData
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

func podOf(t *testing.T, all map[string]any, name string) corev1.PodSpec {
	t.Helper()
	return deploymentIn(t, all, name).Spec.Template.Spec
}

// requirePair wants a private key, and its public one.
func requirePair(t *testing.T, private, public string) {
	t.Helper()
	block, _ := pem.Decode([]byte(private))
	require.NotNil(t, block, private)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	require.NoError(t, err)
	key, is := parsed.(ed25519.PrivateKey)
	require.True(t, is)
	block, _ = pem.Decode([]byte(public))
	require.NotNil(t, block, public)
	theirs, err := x509.ParsePKIXPublicKey(block.Bytes)
	require.NoError(t, err)
	require.True(t, key.Public().(ed25519.PublicKey).Equal(theirs))
}

// startFleet starts a NATS server with the accounts, and a coordinator and a worker with the
// arguments and the environment that their pods have, but for places. It writes the environment of
// the coordinator's pod to a file.
func startFleet(t *testing.T, bin, pods string, built map[string]any, secrets map[string]map[string]string) {
	t.Helper()
	build := func(module string, packages ...string) {
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"-C", module, "build", "-trimpath", "-o", bin + "/"}, packages...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	build("../../..", "./cmd/coordinator", "./cmd/worker")
	build("../../compose/check", "github.com/nats-io/nats-server/v2")
	probe := exec.CommandContext(t.Context(), filepath.Join(bin, "worker"), "--sandbox-check")
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("NOT TESTED further than the manifests: no sandbox of level full here: %s", out)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "accounts.conf"), []byte(read(t, "../../nats/accounts.conf")), 0o600))
	config := filepath.Join(dir, "nats.conf")
	require.NoError(t, os.WriteFile(config, []byte("listen: \""+address+"\"\njetstream { store_dir: \""+dir+"/store\" }\ninclude accounts.conf\n"), 0o600))
	begin(t, []string{
		"FLEET_PASSWORD=" + secrets["toolfleet-nats"]["fleet"],
		"WORKER_PASSWORD=" + secrets["toolfleet-nats"]["worker"],
		"READER_PASSWORD=" + secrets["toolfleet-nats"]["reader"],
	}, filepath.Join(bin, "nats-server"), "--config", config)
	require.Eventually(t, func() bool {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, time.Minute, 20*time.Millisecond)
	for _, name := range []string{"coordinator", "worker"} {
		container := podOf(t, built, name).Containers[0]
		keys := t.TempDir()
		env := []string{"PATH=" + os.Getenv("PATH")}
		for _, v := range container.Env {
			value := v.Value
			if v.ValueFrom != nil {
				value = secrets[v.ValueFrom.SecretKeyRef.Name][v.ValueFrom.SecretKeyRef.Key]
			}
			switch {
			case v.Name == "TOOLFLEET_REPLICAS":
				value = "1"
			case v.Name == "TOOLFLEET_DATA":
				value = t.TempDir()
			case strings.HasPrefix(value, "/etc/toolfleet/"):
				file := strings.TrimPrefix(value, "/etc/toolfleet/")
				value = filepath.Join(keys, file)
				require.NoError(t, os.WriteFile(value, []byte(secrets["toolfleet-"+name][file]), 0o600))
			}
			env = append(env, v.Name+"="+regexp.MustCompile(`@nats:4222$`).ReplaceAllString(value, "@"+address))
		}
		if name == "coordinator" {
			require.NoError(t, os.WriteFile(pods, []byte(strings.Join(env, "\n")), 0o600))
		}
		begin(t, env, filepath.Join(bin, name), container.Args...)
	}
}

// begin starts a program again whenever it ends, as the cluster does, until the test ends.
func begin(t *testing.T, env []string, program string, args ...string) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for t.Context().Err() == nil {
			cmd := exec.CommandContext(t.Context(), program, args...)
			cmd.Env = env
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			if t.Context().Err() == nil {
				t.Logf("%s ended: %v: %s", filepath.Base(program), err, out.Bytes())
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	t.Cleanup(func() { <-done }) // t.Context has ended by then
}
