package firsthour

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/toolfleet/toolfleet/test/processtest"
)

// asksBash is a call of bash.
func asksBash(t *testing.T, command string, background bool, wanted ...string) call {
	t.Helper()
	arguments, err := json.Marshal(map[string]any{"command": command, "background": background})
	require.NoError(t, err)
	return call{tool: "bash", arguments: string(arguments), wanted: wanted}
}

// TestPublish_ServersOfTheSandboxAreReached: what a model starts is opened from outside, and the
// way leads nowhere else.
func TestPublish_ServersOfTheSandboxAreReached(t *testing.T) {
	t.Parallel()
	servers := map[string]struct {
		needs, command, page string
		files                map[string]string
	}{
		"python": {needs: "python3", command: "python3 -m http.server 3000", page: "hello from python", files: map[string]string{"index.html": "hello from python"}},
		"node": {needs: "npm", command: "npm run dev", page: "hello from node", files: map[string]string{
			"package.json": `{"scripts": {"dev": "node server.js"}}`,
			"server.js":    `require("http").createServer((q, r) => r.end("hello from node")).listen(3000, "localhost")`,
		}},
	}
	outside := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(outside.Close)
	for name, server := range servers {
		project{needs: []string{server.needs}}.available(t)
		asUsers(t, name, func(t *testing.T, uid int) {
			t.Helper()
			who := newPerson(t, uid)
			for name, content := range server.files {
				require.NoError(t, os.WriteFile(filepath.Join(who.workspace, name), []byte(content), 0o644))
			}
			p := project{calls: []call{
				asksBash(t, server.command, true),
				asksBash(t, "until test -e fetched; do sleep 0.1; done; echo there", false, "there"),
				asksBash(t, `for at in $(cat fetched); do (exec 3<>/dev/tcp/127.0.0.1/$at) 2>/dev/null && echo out: $at; done; echo tried`, false, "tried"),
			}}
			p.calls[2].not = []string{"out:"}
			model := p.model(t, filepath.Dir(who.home))
			who.own(t)
			run := who.start(t, "coordinator", "run", "--json", "--model", model, "--min-level", "full", "--workspace", who.workspace, "--publish", "0:3000", "serve it")
			url := run.wait(t, run.out, `"published":\[\{"url":"(http://127\.0\.0\.1:\d+)","port":3000\}\]`)[1]
			said := url + " is port 3000 of the sandbox, where something listens now"
			require.Eventually(t, func() bool { return strings.Contains(run.said.String(), said) }, patience, 50*time.Millisecond, "%s", run)
			require.Equal(t, server.page, page(url), "as soon as it is told")
			ports := url[strings.LastIndex(url, ":")+1:] + " " + outside.URL[strings.LastIndex(outside.URL, ":")+1:]
			require.NoError(t, os.WriteFile(filepath.Join(who.workspace, "fetched"), []byte(ports), 0o644))
			p.check(t, run.end(t), true)
			require.Equal(t, 1, strings.Count(run.said.String(), url))
			require.Empty(t, page(url), "it ends with the session")
		})
	}
}

// page is what a URL has, "" where there is none.
func page(url string) string {
	response, err := (&http.Client{Timeout: time.Minute}).Get(url) //nolint:noctx // it has a time
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return string(text)
}

// loopback is where the servers of these tests are. Sandboxes have one of their own, and reach them
// by the proxy.
const loopback = "127.0.0.1"

// byProxy has ssh connect by the proxy.
const byProxy = `#!/bin/bash
exec 3<>/dev/tcp/127.0.0.1/3128
printf 'CONNECT %s:%s HTTP/1.1\r\nHost: x\r\n\r\n' "$1" "$2" >&3
while read -r line <&3 && test "$line" != $'\r'; do :; done
cat <&3 &
cat >&3
`

// repository makes one with a file, and returns its path.
func repository(t *testing.T, who person, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "project.git")
	who.shell(t, fmt.Sprintf(`mkdir -p %q && cd %[1]q && git init -q seed && cd seed && echo content >file && git add . &&
		git -c user.name=a -c user.email=a@example.com commit -qm one && git clone -q --bare . %q`, dir, path))
	return path
}

// TestSSHAgent_GitOverSSH: a clone from a listed host logs in with the user's agent; other hosts,
// other requests and other signatures are refused.
func TestSSHAgent_GitOverSSH(t *testing.T) {
	t.Parallel()
	project{needs: []string{"git", "ssh", "ssh-agent", "ssh-add", "ssh-keygen"}}.available(t)
	asUsers(t, "ssh", func(t *testing.T, uid int) {
		t.Helper()
		who := newPerson(t, uid)
		dir := filepath.Dir(who.home)
		require.NoError(t, os.MkdirAll(filepath.Join(who.home, ".ssh"), 0o700))
		who.own(t)
		path := repository(t, who, filepath.Join(dir, "server"))
		who.shell(t, "ssh-keygen -q -t ed25519 -N '' -f ~/key && ssh-keygen -q -t ed25519 -N '' -f new && echo text >message")
		processtest.WriteProgram(t, filepath.Join(who.workspace, "proxy"), []byte(byProxy))
		socket := filepath.Join(dir, "agent")
		agent := who.start(t, "/usr/bin/ssh-agent", "-D", "-a", socket)
		agent.wait(t, agent.out, "SSH_AUTH_SOCK")
		who.env = append(who.env, "SSH_AUTH_SOCK="+socket)
		who.shell(t, "ssh-add -q ~/key")
		key, err := os.ReadFile(filepath.Join(who.home, "key.pub"))
		require.NoError(t, err)
		known, unknown := serveSSH(t, key), serveSSH(t, key)
		line := knownhosts.Line([]string{net.JoinHostPort(loopback, known.port)}, known.key)
		hosts := filepath.Join(who.home, ".ssh", "known_hosts")
		require.NoError(t, os.WriteFile(hosts, []byte(line+"\n"), 0o644))
		who.own(t)
		who.shell(t, "ssh-keygen -q -H -f ~/.ssh/known_hosts") // as Debian and Ubuntu have it

		url := "ssh://git@" + loopback + ":%s" + path
		const proxied = `export GIT_SSH_COMMAND="$GIT_SSH_COMMAND -o ProxyCommand='./proxy %h %p'"; `
		p := project{calls: []call{
			asksBash(t, proxied+"git clone -q "+fmt.Sprintf(url, known.port)+" cloned && cat cloned/file", false, "content"),
			asksBash(t, "ssh-add -l", false, "ED25519"),
			asksBash(t, "ssh-add new; ssh-add -D; ssh-add -x </dev/null; ssh-add -l", false, "agent refused operation", "ED25519"),
			asksBash(t, "ssh-add -L >user.pub && ssh-keygen -Y sign -n file -f user.pub message; test ! -e message.sig && echo none", false, "none"),
			asksBash(t, proxied+"git clone -q "+fmt.Sprintf(url, unknown.port)+" other", false, "Host key verification failed"),
			asksBash(t,
				"GIT_SSH_COMMAND='ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/tmp/known'; "+proxied+"git clone -q "+fmt.Sprintf(url, unknown.port)+" other",
				false, "agent refused operation", "Permission denied"),
			asksBash(t, "ls ~/.ssh /run/toolfleet; echo changed >/run/toolfleet/known_hosts", false, "No such file", "known_hosts", "Read-only file system"),
		}}
		model := p.model(t, dir)
		args := []string{"run", "--json", "--model", model, "--min-level", "full", "--workspace", who.workspace, "--ssh-agent", "--allow-net-private", "127.0.0.0/8"}
		listed := loopback + ":" + known.port + "," + loopback + ":" + unknown.port
		out, said := who.coordinator(t, append(args, "--allow-net", listed, "clone it")...)
		p.check(t, out, true)
		require.Contains(t, said, "commands log in with your SSH agent at "+loopback+":"+known.port)
		require.Contains(t, out, `"ssh_agent":["`+loopback+":"+known.port+`"]`)
		who.shell(t, "ssh-add -l | grep -c ED25519 | grep -qx 1")

		for says, args := range map[string][]string{
			"lists no host that is in your known_hosts": append(args, "--allow-net", loopback+":"+unknown.port, "x"),
			"needs listed hosts":                        {"run", "--model", model, "--ssh-agent", "--allow-net", "all", "x"},
			"works only without --nats":                 {"run", "--model", model, "--ssh-agent", "--nats", "nats://127.0.0.1:1", "x"},
		} {
			require.Contains(t, who.refused(t, args...), "--ssh-agent: ")
			require.Contains(t, who.refused(t, args...), says)
		}
		who.env = nil
		require.Contains(t, who.refused(t, append(args, "--allow-net", listed, "x")...), "--ssh-agent: no agent runs")
	})
}

// refused runs a coordinator that must end with a usage error, and returns that.
func (who person) refused(t *testing.T, args ...string) string {
	t.Helper()
	var said bytes.Buffer
	cmd := who.command(t, filepath.Join(binaries, "coordinator"), args...)
	cmd.Stderr = &said
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Run(), &exit, "%s", said.String())
	require.Equal(t, 2, exit.ExitCode(), "%s", said.String())
	return said.String()
}

// sshServer runs what git asks for.
type sshServer struct {
	port string
	key  ssh.PublicKey
}

// serveSSH starts a server that lets one key in.
func serveSSH(t *testing.T, authorized []byte) sshServer {
	t.Helper()
	user, _, _, _, err := ssh.ParseAuthorizedKey(authorized)
	require.NoError(t, err)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	host, err := ssh.NewSignerFromKey(private)
	require.NoError(t, err)
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if !bytes.Equal(key.Marshal(), user.Marshal()) {
			return nil, os.ErrPermission
		}
		return &ssh.Permissions{}, nil
	}}
	config.AddHostKey(host)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go answerSSH(t, conn, config)
		}
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return sshServer{port: port, key: host.PublicKey()}
}

func answerSSH(t *testing.T, conn net.Conn, config *ssh.ServerConfig) {
	t.Helper()
	defer conn.Close()
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		channel, requests, err := offered.Accept()
		if err != nil {
			return
		}
		for request := range requests {
			_ = request.Reply(request.Type == "exec" || request.Type == "env", nil)
			if request.Type != "exec" {
				continue
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-c", string(request.Payload[4:]))
			cmd.Stdin, cmd.Stdout, cmd.Stderr = channel, channel, channel.Stderr()
			cmd.Env = append(os.Environ(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
			_ = cmd.Run()
			_, _ = channel.SendRequest("exit-status", false, []byte{0, 0, 0, byte(cmd.ProcessState.ExitCode())})
			_ = channel.Close()
		}
	}
}

// TestGitCredentials_OfOneHost: git in a sandbox gets the user's password for a host that was
// named, and for no other, and changes nothing that the user's helper keeps.
func TestGitCredentials_OfOneHost(t *testing.T) {
	t.Parallel()
	project{needs: []string{"git"}}.available(t)
	asUsers(t, "https", func(t *testing.T, uid int) {
		t.Helper()
		who := newPerson(t, uid)
		dir := filepath.Dir(who.home)
		helper := filepath.Join(dir, "helper")
		processtest.WriteProgram(t, helper, []byte("#!/bin/sh\necho $1 in $(pwd) >>~/asked\ncat >/dev/null\necho username=ada\necho password=secret\n"))
		require.NoError(t, os.WriteFile(filepath.Join(who.home, ".gitconfig"), []byte("[credential]\n\thelper = "+helper+"\n"), 0o644))
		require.NoError(t, os.WriteFile(filepath.Join(who.home, "asked"), nil, 0o644))
		who.own(t)
		path := repository(t, who, filepath.Join(dir, "server"))
		named, other := serveGit(t, filepath.Dir(path)), serveGit(t, filepath.Dir(path))
		ask := `printf 'protocol=https\nhost=%s\n\n' | GIT_TERMINAL_PROMPT=0 git credential `
		p := project{calls: []call{
			asksBash(t, "git clone -q https://"+named+"/project.git cloned && cat cloned/file", false, "content"),
			asksBash(t, "git clone -q https://"+other+"/project.git other", false, "could not read Username"),
			asksBash(t, fmt.Sprintf(ask, other)+"fill", false, "could not read Username"),
			asksBash(t, fmt.Sprintf(ask, "127.0.0.1:1")+"fill", false, "could not read Username"),
			asksBash(t, strings.Replace(fmt.Sprintf(ask, named), "https", "http", 1)+"fill", false, "could not read Username"),
			asksBash(t, fmt.Sprintf(ask, named+`\nusername=ada\npassword=secret`)+"reject", false, "exit code 0"),
			asksBash(t, fmt.Sprintf(ask, named+`\nusername=ada\npassword=other`)+"approve", false, "exit code 0"),
			asksBash(t, fmt.Sprintf(ask, named)+"fill", false, "username=ada", "password=secret"),
		}}
		model := p.model(t, dir)
		args := []string{
			"run", "--json", "--model", model, "--min-level", "full", "--workspace", who.workspace, "--env", "GIT_SSL_NO_VERIFY=1", "--env", "NO_PROXY=", "--env", "no_proxy=",
			"--allow-net-private", "127.0.0.0/8", "--allow-net", named + "," + other, "--git-credentials",
		}
		out, said := who.coordinator(t, append(args, named, "clone it")...)
		p.check(t, out, true)
		require.Contains(t, said, "commands get your git credentials for "+named)
		require.Contains(t, out, `"git_credentials":["`+named+`"]`)
		asked, err := os.ReadFile(filepath.Join(who.home, "asked"))
		require.NoError(t, err)
		require.Regexp(t, `^(get in /\n)+$`, string(asked))

		require.Contains(t, who.refused(t, append(args, "github.com", "x")...), "--git-credentials github.com: --allow-net does not list github.com:443")
		require.Contains(t, who.refused(t, append(args, "a/b", "x")...), "--git-credentials a/b: ")
	})
}

// serveGit starts a server of repositories that wants a password, and returns its name and port.
func serveGit(t *testing.T, dir string) string {
	t.Helper()
	path, err := exec.CommandContext(t.Context(), "git", "--exec-path").Output()
	require.NoError(t, err)
	git := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "ada" || password != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		git.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	require.NoError(t, err)
	return net.JoinHostPort(loopback, port)
}
