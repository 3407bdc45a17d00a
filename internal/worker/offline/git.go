package offline

import (
	"path"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/shell"
)

// gitNeeds reports whether a git command reaches a host elsewhere.
func gitNeeds(r ReachFunc, args []shell.Word, remote RemoteFunc) bool {
	dir := ""
	for len(args) > 0 && strings.HasPrefix(args[0].Text, "-") { // options of git itself
		n := 1
		switch args[0].Text {
		case "-C":
			if len(args) < 2 || !args[1].Known {
				return false
			}
			dir, n = path.Join(dir, args[1].Text), 2
		case "-c":
			n = 2
		}
		args = args[min(n, len(args)):]
	}
	if len(args) == 0 || slices.ContainsFunc(args, func(w shell.Word) bool { return w.Text == "--dry-run" }) {
		return false
	}
	words := positional(args[1:], map[string]string{"clone": "bcjou", "push": "o"}[args[0].Text])
	unknown := slices.ContainsFunc(args, func(w shell.Word) bool { return !w.Known })
	switch args[0].Text {
	case "clone", "ls-remote":
		return slices.ContainsFunc(words, r.gitElsewhere) // among values of options
	case "fetch", "pull", "push":
		return namedRemote(r, words, unknown, dir, remote)
	case "submodule":
		return len(words) > 1 && words[0] == "add" && r.gitElsewhere(words[1])
	case "remote":
		return len(words) > 0 && words[0] == "update" && namedRemote(r, nil, unknown, dir, remote)
	default:
		return false
	}
}

// namedRemote looks at the remote that fetch, pull and push are given, or their default.
func namedRemote(r ReachFunc, words []string, unknown bool, dir string, remote RemoteFunc) bool {
	name := ""
	if len(words) > 0 {
		name = words[0]
		if r.gitElsewhere(name) {
			return true
		}
	} else if unknown {
		return false
	}
	url, ok := remote(dir, name)
	return ok && r.gitElsewhere(url)
}

// gitElsewhere reports whether git takes a word for a repository on a host elsewhere.
func (r ReachFunc) gitElsewhere(word string) bool {
	if schemes.MatchString(word) {
		return r.elsewhere(word)
	}
	host, ok := scpLike(word)
	return ok && r.remoteHost(host)
}
