package offline

import (
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/shell"
)

// manager is a package manager: what it does with the network.
type manager struct {
	verbs []string // that fetch packages, as "install" or "mod download"
	bare  bool     // without a verb, too
	local []string // options that mean that nothing is fetched
	free  []string // environment variables that may mean that
	cache bool     // what it fetched before is enough, and it asks nobody then
	// named says that the verb fetches nothing unless there is an argument.
	named bool
}

// managers are the package managers, by program.
var managers = packageManagers() //nolint:gochecknoglobals // a constant table

func packageManagers() map[string]manager {
	pip := manager{verbs: verbs("install, download, wheel"), local: []string{"--no-index"}, free: []string{"PIP_NO_INDEX", "PIP_INDEX_URL"}, named: true}
	npm := manager{
		verbs: verbs("install, i, ci, add, update, upgrade, publish, audit, outdated, view, search"), local: []string{"--prefer-offline"},
		free: []string{"NPM_CONFIG_REGISTRY", "npm_config_registry"}, cache: true,
	}
	pnpm := npm
	pnpm.cache = false // it has a place of its own
	deb := manager{verbs: verbs("install, update, upgrade, dist-upgrade, full-upgrade, build-dep, source, download"), local: []string{"--no-download"}}
	rpm := manager{verbs: verbs("install, update, upgrade, groupinstall, makecache, refresh, in"), local: []string{"--cacheonly", "-C"}}
	conda := manager{verbs: verbs("install, create, update, search")}
	images := manager{verbs: verbs("pull, push, login, search")}
	return map[string]manager{
		"pip": pip, "pip3": pip, "pipx": {verbs: verbs("install, upgrade, run"), named: true},
		"uv": {
			verbs: verbs("pip install, pip sync, add, sync, lock, tool install, python install"),
			local: []string{"--no-index", "--find-links"}, free: []string{"UV_OFFLINE"}, cache: true,
		},
		"poetry": {verbs: verbs("install, add, update, lock, publish")}, "pdm": {verbs: verbs("install, add, update, lock, sync")},
		"conda": conda, "mamba": conda,
		"npm": npm, "pnpm": pnpm, "bun": {verbs: verbs("install, i, add, update, upgrade")},
		"yarn":    {verbs: verbs("install, add, upgrade, up"), bare: true},
		"apt-get": deb, "apt": deb, "aptitude": deb,
		"apk": {verbs: verbs("add, update, upgrade, fetch"), local: []string{"--no-network"}},
		"dnf": rpm, "yum": rpm, "microdnf": rpm, "zypper": rpm,
		"brew": {verbs: verbs("install, update, upgrade, tap, fetch")}, "snap": {verbs: verbs("install, refresh")},
		"flatpak": {verbs: verbs("install, update")},
		"cargo":   {verbs: verbs("install, add, fetch, update, publish, search"), local: []string{"--path", "--frozen"}, free: []string{"CARGO_NET_OFFLINE"}, cache: true},
		"rustup":  {verbs: verbs("update, install, toolchain install, component add, target add")},
		"go":      {verbs: verbs("get, mod download"), free: []string{"GOPROXY", "GOFLAGS"}, cache: true},
		"gem":     {verbs: verbs("install, update, fetch"), local: []string{"--local", "-l"}, named: true},
		"bundle":  {verbs: verbs("install, update"), local: []string{"--local"}}, "composer": {verbs: verbs("install, require, update, create-project")},
		"dotnet": {verbs: verbs("restore, add package, tool install")}, "docker": images, "podman": images,
	}
}

func verbs(list string) []string { return strings.Split(list, ", ") }

// installs reports whether a command is a package manager that is to fetch something.
func installs(program string, args []shell.Word, assigned []string) bool {
	m, known := managers[program]
	if !known {
		return false
	}
	for _, arg := range args {
		option, _, _ := strings.Cut(arg.Text, "=")
		if !arg.Known || slices.Contains(m.local, option) || strings.HasPrefix(arg.Text, "--registry") || strings.HasPrefix(arg.Text, "--index-url") {
			return false
		}
	}
	if slices.ContainsFunc(m.free, func(name string) bool { return slices.Contains(assigned, name) }) {
		return false
	}
	words := positional(args, "")
	if len(words) == 0 {
		return m.bare && len(args) == 0
	}
	if program == "go" && (words[0] == "install" || words[0] == "run") && len(words) > 1 { // PATH@VERSION
		return strings.Contains(words[1], "@") && !onDisk(words[1])
	}
	if !slices.Contains(m.verbs, words[0]) && (len(words) < 2 || !slices.Contains(m.verbs, words[0]+" "+words[1])) {
		return false
	}
	return m.fetches(words[1:], args)
}

// fetches reports whether what follows the verb is to be fetched.
func (m manager) fetches(words []string, args []shell.Word) bool {
	listed := slices.ContainsFunc(args, func(w shell.Word) bool {
		return w.Text == "-r" || strings.HasPrefix(w.Text, "--requirement")
	})
	if listed {
		return true
	}
	if len(words) == 0 {
		return !m.named
	}
	return !slices.ContainsFunc(words, onDisk)
}

// onDisk reports whether a package is a path.
func onDisk(word string) bool {
	return word == "." || strings.HasPrefix(word, "./") || strings.HasPrefix(word, "../") || strings.HasPrefix(word, "/") ||
		strings.HasPrefix(word, "file:") || strings.HasSuffix(word, ".whl") || strings.HasSuffix(word, ".tar.gz") || strings.HasSuffix(word, ".tgz") ||
		strings.HasSuffix(word, ".deb") || strings.HasSuffix(word, ".rpm") || strings.HasSuffix(word, ".zip")
}
