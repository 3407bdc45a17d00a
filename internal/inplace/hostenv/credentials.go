package hostenv

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

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
