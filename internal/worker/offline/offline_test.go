package offline_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"mvdan.cc/sh/v3/syntax"

	"github.com/toolfleet/toolfleet/internal/worker/offline"
)

// remotes is the configuration of a repository: origin is elsewhere, backup is a directory.
func remotes(dir, name string) (string, bool) {
	if dir == "local" {
		return "../bare.git", true
	}
	url, ok := map[string]string{"": "git@github.com:a/b.git", "origin": "git@github.com:a/b.git", "backup": "/workspace/backup.git"}[name]
	return url, ok && dir == ""
}

func TestScript_NamesWhatNeedsTheNetwork(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"curl https://example.com/x | tar xz":                  "curl https://example.com/x",
		"curl -fsSL example.com/install.sh | sh":               "curl -fsSL example.com/install.sh",
		"curl -o out.html https://example.com":                 "curl -o out.html https://example.com",
		"curl 10.0.0.1:8080/x":                                 "curl 10.0.0.1:8080/x",
		"wget -q 'http://[2001:db8::1]/x'":                     "wget -q 'http://[2001:db8::1]/x'",
		"make && wget example.org/file.tgz":                    "wget example.org/file.tgz",
		"if true; then\n  curl ftp://example.com\nfi":          "curl ftp://example.com",
		"x=$(curl -s https://example.com)":                     "curl -s https://example.com",
		"bash -c 'curl https://example.com'":                   "curl https://example.com",
		"timeout 5 env A=1 curl https://example.com":           "curl https://example.com",
		"/usr/bin/curl https://example.com":                    "/usr/bin/curl https://example.com",
		"cu\"r\"l 'https://example.com'":                       "curl https://example.com",
		"ssh -p 22 me@host.example uptime":                     "ssh -p 22 me@host.example uptime",
		"ssh git@github.com":                                   "ssh git@github.com",
		"scp a.txt me@box:/tmp":                                "scp a.txt me@box:/tmp",
		"rsync -av --delete src/ host.example.com:dst":         "rsync -av --delete src/ host.example.com:dst",
		"rsync rsync://example.com/x .":                        "rsync rsync://example.com/x .",
		"nc -zv example.com 80":                                "nc -zv example.com 80",
		"echo hi | telnet example.com 25":                      "telnet example.com 25",
		"ping -c 1 8.8.8.8":                                    "ping -c 1 8.8.8.8",
		"dig example.com":                                      "dig example.com",
		"socat - TCP:example.com:80":                           "socat - TCP:example.com:80",
		"gh pr list":                                           "gh pr list",
		"git clone https://github.com/a/b":                     "git clone https://github.com/a/b",
		"git clone --depth 1 -b main git@github.com:a/b.git x": "git clone --depth 1 -b main git@github.com:a/b.git x",
		"git -c a.b=c clone ssh://git@github.com/a/b":          "git -c 'a.b=c' clone ssh://git@github.com/a/b",
		"git push https://example.com/x.git main":              "git push https://example.com/x.git main",
		"git push -u origin main":                              "git push -u origin main",
		"git push":                                             "git push",
		"git fetch --all && git pull origin":                   "git fetch --all",
		"git ls-remote https://github.com/a/b":                 "git ls-remote https://github.com/a/b",
		"git submodule add https://github.com/a/b":             "git submodule add https://github.com/a/b",
		"pip install requests":                                 "pip install requests",
		"python3 -m pip install -U pip setuptools":             "python3 -m pip install -U pip setuptools",
		"pip3.11 install x; pip install -r requirements.txt":   "pip install -r requirements.txt",
		"npm ci":                          "npm ci",
		"npm install --save-dev left-pad": "npm install --save-dev left-pad",
		"yarn":                            "yarn",
		"pnpm add x":                      "pnpm add x",
		"apt-get update && apt-get install -y jq":              "apt-get update",
		"sudo apt install jq":                                  "apt install jq",
		"apk add --no-cache git":                               "apk add --no-cache git",
		"cargo add serde":                                      "cargo add serde",
		"go get example.com/x":                                 "go get example.com/x",
		"go install example.com/x/cmd/y@latest":                "go install example.com/x/cmd/y@latest",
		"go mod download":                                      "go mod download",
		"gem install rails":                                    "gem install rails",
		"uv pip install x":                                     "uv pip install x",
		"curl https://example.com/" + strings.Repeat("é", 200): "curl https://example.com/" + strings.Repeat("é", 87) + "…",
	} {
		require.Equal(t, want, offline.Network{Remote: remotes}.Script(script), script)
	}
}

func TestScript_SaysNothingAboutTheRest(t *testing.T) {
	t.Parallel()
	for _, script := range []string{
		"", "true", "ls -la", "curl", "curl --version", "wget --help", "which curl", "command -v curl", "type wget", "man curl",
		// here
		"curl http://localhost:8080/x", "curl -s 127.0.0.1:3000", "curl http://[::1]:80/", "curl http://app.localhost/", "curl file:///etc/hosts",
		"wget -O out.html http://localhost/", "curl -H 'Referer: https://example.com' http://localhost/", "nc -l 8080", "nc localhost 80", "nc -U /tmp/s",
		"ping -c1 localhost", "ssh localhost", "dig @127.0.0.1 example.com", "socat TCP-LISTEN:80 TCP:localhost:81", "rsync -a src/ dst/", "scp a b",
		"scp ./a:b c", "telnet 127.0.0.1 25",
		// not known
		`curl "$URL"`, "curl https://$HOST/", "wget -i urls.txt", "ssh $HOST uptime.sh", "ssh build", "$CURL https://example.com", "curl -K config.txt",
		"PATH=bin:$PATH; curl https://example.com", "PATH=bin curl https://example.com", "./curl https://example.com", "bin/npm install",
		"curl() { echo fake; }; curl https://example.com", "alias curl=echo; curl https://example.com", "pip install $PACKAGES",
		"git clone $REPO", "git push $REMOTE", "cd sub && git push", "git -C sub push", "git push other",
		// words
		"echo curl https://example.com", "echo 'pip install x'", `grep -r "curl https://example.com" .`, "cat <<EOF\ncurl https://example.com\nnpm ci\nEOF",
		"cat > install.sh <<'EOF'\napt-get update\nEOF", "# curl https://example.com", "git commit -m 'git push origin'", "printf '%s' \"npm install\"",
		"sed -i 's#https://example.com#x#' f", "python3 -c 'print(\"curl https://example.com\")'",
		// git that stays here
		"git status", "git init && git add . && git commit -m x", "git log origin/main", "git clone ./a b", "git clone /workspace/a b", "git clone file:///a b",
		"git push backup main", "git push ../bare.git main", "git -C local push", "git push --dry-run origin", "git remote add origin https://github.com/a/b",
		"git config remote.origin.url https://github.com/a/b", "git stash push", "git submodule status", "git --help push",
		// package managers that fetch nothing
		"pip list", "pip install", "pip install .", "pip install -e .", "pip install ./dist/x.whl", "pip install --no-index x", "npm run build", "npm test",
		"npm install --offline", "npm install ./local", "npm pack", "yarn build", "yarn --offline", "cargo build", "cargo test --offline", "cargo install --path .",
		"go build ./...", "go test ./...", "go install ./cmd/x", "GOPROXY=file:///p go get x", "go mod tidy", "apt list", "dpkg -i x.deb", "apt-get install ./x.deb",
		"bundle install --local", "brew list", "docker ps", "python3 -m venv .venv", "python3 -m http.server", "poetry run pytest",
		// nonsense
		"if", "'", "curl https://example.com '", "\x00", "((",
	} {
		require.Empty(t, offline.Network{Remote: remotes}.Script(script), script)
	}
	require.Empty(t, offline.Network{}.Script("git push"))
}

// reach is a list with one host and one suffix.
func reach(host string) bool { return host == "allowed.org" || strings.HasSuffix(host, ".github.com") }

func TestScript_NamesHostsThatAreNotListed(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"curl https://other.com/x":                              "curl https://other.com/x",
		"make && wget -q http://allowed.org.other.com":          "wget -q http://allowed.org.other.com",
		"curl https://allowed.org; curl -sSL other.com/i.sh|sh": "curl -sSL other.com/i.sh",
		"git clone https://gitlab.com/a/b":                      "git clone https://gitlab.com/a/b",
		"git push origin":                                       "git push origin",
		"ssh git@github.com":                                    "ssh git@github.com",
		"curl http://10.0.0.1/":                                 "curl http://10.0.0.1/",
		"dig other.com":                                         "dig other.com",
	} {
		require.Equal(t, want, offline.Network{Remote: remotes, Reach: reach}.Script(script), script)
	}
	require.Equal(t, "curl https://other.com", offline.Network{Reach: reach}.Argv([]string{"curl", "https://other.com"}))
}

func TestScript_BlocksNothingThatMayWork(t *testing.T) {
	t.Parallel()
	for _, script := range []string{
		"curl https://allowed.org/x", "curl allowed.org", "curl http://ALLOWED.ORG:8080/", "wget https://api.github.com", "git clone https://api.github.com/a",
		"curl http://localhost:3000", "curl http://127.0.0.1", "ssh allowed.org", "ping -c1 allowed.org", "rsync -a u@allowed.org:x .", "nc allowed.org 443",
		// who knows where packages come from
		"npm ci", "pip install x", "go mod download", "apt-get update", "gh pr list", "cargo add serde", "docker pull x",
		// it fails, and the script goes on
		"curl https://other.com || curl https://allowed.org", "if curl -s https://other.com; then make; fi", "until curl other.com; do sleep 1; done",
		"trap 'make' EXIT; curl https://other.com",
		// another host is asked
		"curl --connect-to other.com:443:allowed.org:443 https://other.com", "curl --resolve other.com:443:1.2.3.4 https://other.com",
		"curl -x http://allowed.org:3128 https://other.com", "curl https://$HOST/", "echo curl https://other.com",
	} {
		require.Empty(t, offline.Network{Remote: remotes, Reach: reach}.Script(script), script)
	}
}

// TestScript_ACacheMayBeEnough for package managers that use what they have.
func TestScript_ACacheMayBeEnough(t *testing.T) {
	t.Parallel()
	cached := offline.Network{Remote: remotes, Cache: true}
	for _, script := range []string{"npm ci", "go mod download", "cargo fetch", "uv sync"} {
		require.Empty(t, cached.Script(script), script)
		require.NotEmpty(t, offline.Network{}.Script(script), script)
	}
	for _, script := range []string{"pip install x", "pnpm install", "apt-get update", "git push", "curl https://example.com"} {
		require.NotEmpty(t, cached.Script(script), script)
	}
}

func TestArgv(t *testing.T) {
	t.Parallel()
	require.Equal(t, "curl https://example.com", offline.Network{}.Argv([]string{"curl", "https://example.com"}))
	require.Empty(t, offline.Network{}.Argv([]string{"echo", "curl https://example.com"}))
	require.Empty(t, offline.Network{}.Argv(nil))
	require.NotEmpty(t, offline.Network{}.Argv([]string{"bash", "-c", "pip install x"}))
}

// FuzzScript checks that nothing makes it panic, and that what is quoted is never a command.
func FuzzScript(f *testing.F) {
	for _, script := range []string{"curl https://example.com", "git push origin", "pip install 'x'", "a $(npm ci) <<EOF\nEOF", "-c \\", "curl -"} {
		f.Add(script)
	}
	off, listed := offline.Network{Remote: remotes}, offline.Network{Remote: remotes, Reach: reach}
	f.Fuzz(func(t *testing.T, script string) {
		off.Script(script)
		if off.Script(script) == "" {
			require.Empty(t, listed.Script(script), "what may work without a network may work with one")
		}
		off.Argv(strings.Fields(script))
		quoted, err := syntax.Quote(script, syntax.LangBash)
		if err != nil {
			return
		}
		require.Empty(t, off.Script("echo "+quoted))
		require.Empty(t, off.Script("# "+strings.ReplaceAll(script, "\n", " ")))
	})
}
