package hostenv

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
)

// Bounds of a question for credentials.
const (
	maxQuestion    = 64 << 10
	questionTime   = 10 * time.Second // to ask it
	credentialTime = 2 * time.Minute  // for the user's helper, which may ask the user
)

// ParseCredentialHost brings HOST[:PORT] into the form in which git names a host of https, and
// refuses one that is not listed.
func ParseCredentialHost(text string, allow egress.Allow) (string, error) {
	const https = 443
	t, err := egress.ParseTarget(text, https)
	if err != nil {
		return "", err
	}
	if !allow.Match(t) {
		return "", fmt.Errorf("--allow-net does not list %s; list it, as in --allow-net %s", t, t)
	}
	if t.Port == https {
		return strings.TrimSuffix(t.String(), ":443"), nil
	}
	return t.String(), nil
}

// GitCredentials opens a socket to the user's git credentials of these hosts, see
// [ParseCredentialHost]. In the sandbox it is for git the socket of its cache of credentials.
func (d *Doors) GitCredentials(ctx context.Context, hosts []string) error {
	program, err := gitguard.Program("git", d.Workspace)
	if err != nil {
		return fmt.Errorf("git is not installed: %w", err)
	}
	ask := func(ctx context.Context, host string) []byte {
		return credential(ctx, program, gitguard.Path(d.Workspace), host)
	}
	for i, host := range hosts {
		n := strconv.Itoa(i)
		maps.Copy(d.Env, map[string]string{
			"GIT_CONFIG_KEY_" + n:   "credential.https://" + host + ".helper",
			"GIT_CONFIG_VALUE_" + n: "cache --socket '" + d.path("git-credentials") + "'",
		})
	}
	d.Env["GIT_CONFIG_COUNT"] = strconv.Itoa(len(hosts))
	return d.serve(ctx, "git-credentials", func(ctx context.Context, caller net.Conn) { answerGit(ctx, caller, hosts, ask) })
}

// answerGit answers a question in the form that git has for its cache: lines of NAME=VALUE, and the
// end. Whatever is not a question for one of the hosts gets no answer.
func answerGit(ctx context.Context, caller net.Conn, hosts []string, ask func(ctx context.Context, host string) []byte) {
	_ = caller.SetReadDeadline(time.Now().Add(questionTime))
	question, err := io.ReadAll(io.LimitReader(caller, maxQuestion))
	if err != nil {
		return
	}
	asked := map[string]string{}
	for line := range strings.Lines(string(question)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		asked[name] = value
	}
	if asked["action"] == "get" && asked["protocol"] == "https" && slices.Contains(hosts, strings.ToLower(asked["host"])) {
		_, _ = caller.Write(ask(ctx, strings.ToLower(asked["host"]))) // to one that may be gone
	}
}

// credential is the user's git credential of a host, as lines of NAME=VALUE. The
// program is asked outside of the workspace, where commands may have written settings and programs,
// with a path without these, and in no repository. It never prompts at a terminal.
func credential(ctx context.Context, program, path, host string) []byte {
	ctx, cancel := context.WithTimeout(ctx, credentialTime)
	defer cancel()
	git := exec.CommandContext(ctx, program, "credential", "fill")
	git.Dir, git.WaitDelay = string(os.PathSeparator), time.Second
	git.Env = append(os.Environ(), "PATH="+path, "GIT_DIR="+os.DevNull, "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=")
	git.Stdin = strings.NewReader("protocol=https\nhost=" + host + "\n\n")
	known, err := git.Output()
	if err != nil {
		return nil
	}
	var answer bytes.Buffer
	for line := range bytes.Lines(known) {
		if bytes.HasPrefix(line, []byte("username=")) || bytes.HasPrefix(line, []byte("password=")) {
			answer.Write(line)
		}
	}
	return answer.Bytes()
}

// SSHAgent opens a door to the user's SSH agent at a socket, for logins at hosts that are listed
// and in the known_hosts of the user, who has that home. It returns those hosts.
func (d *Doors) SSHAgent(ctx context.Context, socket, home string, allow egress.Allow) ([]string, error) {
	if allow.All() {
		return nil, errors.New("needs listed hosts, and --allow-net all lists none: name them, as in --allow-net github.com:22")
	}
	if socket == "" {
		return nil, errors.New("no agent runs: SSH_AUTH_SOCK is not set; start one (eval $(ssh-agent); ssh-add)")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("no agent answers at SSH_AUTH_SOCK=%s: %w; start one (eval $(ssh-agent); ssh-add)", socket, err)
	}
	_ = conn.Close() // it was to see that there is one
	a := &sshAgent{socket: socket, workspace: d.Workspace, known: map[string]bool{}}
	hosts, lines, err := a.learn(ctx, home, allow)
	if err != nil {
		return nil, err
	}
	if len(hosts) == 0 {
		return nil, errors.New("--allow-net lists no host that is in your known_hosts with that port; list one, as in --allow-net github.com:22, and log in there once")
	}
	if err := errors.Join(d.put("known_hosts", lines), d.serve(ctx, "ssh-agent", a.answer)); err != nil {
		return nil, err
	}
	d.Env["SSH_AUTH_SOCK"] = d.path("ssh-agent")
	d.Env["GIT_SSH_COMMAND"] = "ssh -o StrictHostKeyChecking=yes -o UserKnownHostsFile='" + d.path("known_hosts") + "'"
	return hosts, nil
}

// sshAgent stands before the user's agent. It lets through the two requests that a login takes: for
// the public keys, and to sign. Only a login is signed, at a host that it knows: a client proves to
// it with which host it talks, by what that has signed (session-bind@openssh.com, OpenSSH 8.9).
type sshAgent struct {
	socket    string          // the user's agent
	workspace string          // where commands write; "" for nowhere
	known     map[string]bool // keys of hosts, as they are on the wire
}

// learn finds the keys of listed hosts, and returns those hosts and lines of a known_hosts file.
func (a *sshAgent) learn(ctx context.Context, home string, allow egress.Allow) (hosts []string, lines string, err error) {
	program, err := gitguard.Program("ssh-keygen", a.workspace)
	if err != nil {
		return nil, "", errors.New("ssh-keygen, which reads known_hosts, is not installed")
	}
	for _, t := range allow.Targets() {
		if t.Port == 0 {
			t.Port = 22
		}
		keys := knownKeys(ctx, program, home, knownhosts.Normalize(t.String()))
		for _, key := range keys {
			a.known[string(key.Marshal())] = true
			lines += knownhosts.Line([]string{t.String()}, key) + "\n"
		}
		if len(keys) > 0 && !slices.Contains(hosts, t.String()) {
			hosts = append(hosts, t.String())
		}
	}
	return hosts, lines, nil
}

// knownKeys are the keys of a host in the user's and the system's known_hosts.
func knownKeys(ctx context.Context, program, home, host string) (keys []ssh.PublicKey) {
	for _, file := range []string{filepath.Join(home, ".ssh", "known_hosts"), "/etc/ssh/ssh_known_hosts"} {
		found, err := exec.CommandContext(ctx, program, "-F", host, "-f", file).Output()
		if err != nil { // the file or the host is not there
			continue
		}
		for line := range strings.Lines(string(found)) {
			marker, _, key, _, _, err := ssh.ParseKnownHosts([]byte(line))
			if err == nil && marker == "" { // no comment, and neither revoked nor an authority
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// Messages of the agent's protocol, draft-miller-ssh-agent.
const (
	agentFailure   = 5
	agentSuccess   = 6
	agentList      = 11
	agentExtension = 27

	maxAgentMessage = 256 << 10
	loginRequest    = 50 // SSH_MSG_USERAUTH_REQUEST
	sessionBind     = "session-bind@openssh.com"
)

// answer answers the requests of one caller.
func (a *sshAgent) answer(ctx context.Context, caller net.Conn) {
	agent, err := (&net.Dialer{}).DialContext(ctx, "unix", a.socket)
	if err != nil {
		return
	}
	defer agent.Close()
	defer context.AfterFunc(ctx, func() { _ = agent.Close() })()
	var session []byte // that the caller has with a known host
	for {
		request, err := readAgent(caller)
		if err != nil {
			return
		}
		reply := []byte{agentFailure}
		switch {
		case request[0] == agentExtension:
			if session = a.bound(request); session != nil {
				reply = []byte{agentSuccess}
			}
		case request[0] == agentList, isLogin(request, session):
			if err := writeAgent(agent, request); err != nil {
				return
			}
			if reply, err = readAgent(agent); err != nil {
				return
			}
		}
		if err := writeAgent(caller, reply); err != nil {
			return
		}
	}
}

// bound is the session in a request that binds a caller to it; nil unless a known host has signed
// that, and it is not for the requests of another process.
func (a *sshAgent) bound(request []byte) []byte {
	var extension struct {
		Type string `sshtype:"27"`
		Rest []byte `ssh:"rest"`
	}
	var bind struct {
		HostKey, Session, Signature []byte
		Forwarding                  bool
	}
	var signature ssh.Signature
	if ssh.Unmarshal(request, &extension) != nil || extension.Type != sessionBind ||
		ssh.Unmarshal(extension.Rest, &bind) != nil || ssh.Unmarshal(bind.Signature, &signature) != nil {
		return nil
	}
	key, err := ssh.ParsePublicKey(bind.HostKey)
	if err != nil || bind.Forwarding || !a.known[string(bind.HostKey)] || key.Verify(bind.Session, &signature) != nil {
		return nil
	}
	return bind.Session
}

// isLogin reports whether a request is to sign a login in that session, and nothing else.
func isLogin(request, session []byte) bool {
	var sign struct {
		Key   []byte `sshtype:"13"`
		Data  []byte
		Flags uint32
	}
	var login struct {
		Session               []byte
		Message               byte
		User, Service, Method string
		Signed                bool
		Rest                  []byte `ssh:"rest"`
	}
	return len(session) > 0 && ssh.Unmarshal(request, &sign) == nil && ssh.Unmarshal(sign.Data, &login) == nil &&
		string(login.Session) == string(session) && login.Message == loginRequest && login.Service == "ssh-connection" &&
		(login.Method == "publickey" || login.Method == "publickey-hostbound-v00@openssh.com") && login.Signed
}

// readAgent reads a message, which has a byte at least.
func readAgent(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n == 0 || n > maxAgentMessage {
		return nil, fmt.Errorf("message of %d bytes: must be 1 to %d", n, maxAgentMessage)
	}
	message := make([]byte, n)
	_, err := io.ReadFull(r, message)
	return message, err
}

func writeAgent(w io.Writer, message []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(message))), message...)) //nolint:gosec // at most maxAgentMessage
	return err
}
