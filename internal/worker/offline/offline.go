// Package offline finds, in a shell script that is about to run where there is no
// network, the commands that cannot work there.
//
// It is a courtesy to models: the sandbox is what keeps commands from the network, and
// does so whatever a script says. A model that is told before anything runs does not
// wait for time-outs, or take a failed download for a fault of its own. So the package
// errs on the side of silence. It names a command when the script itself, or the
// configuration of the git repository it is in, says that a host other than the
// sandbox's own is to be reached, or that a package manager is to fetch something. It
// says nothing about what it does not understand: variables, unknown programs and
// options, programs that the script defines itself, scripts that change the PATH.
// Words in quotes and here documents are words.
package offline

import (
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/shell"
)

// RemoteFunc returns the URL of a remote of the git repository in dir, which is
// relative to where the script starts; "" is the default remote. ok is false when it is not known.
type RemoteFunc func(dir, remote string) (url string, ok bool)

// ReachFunc reports whether a host can be reached, on some port. With nil nothing can but
// the sandbox's own; with one, package managers are believed to find what they need.
type ReachFunc func(host string) bool

// Network is what commands have of one.
type Network struct {
	Remote RemoteFunc // may be nil
	Reach  ReachFunc  // may be nil
	// Cache says that what package managers fetched before may still be there, which may be enough
	// for those that ask nobody then.
	Cache bool
}

// Script returns the first command of a script that needs what cannot be reached of the
// network, as it would be typed; "" when none is known to.
func (n Network) Script(script string) string {
	if n.Reach != nil && mayGoOn(script) {
		return ""
	}
	parsed, err := shell.Parse(script)
	if err != nil {
		return ""
	}
	return n.first(parsed, script)
}

// mayGoOn reports whether a script seems to be ready for a command that fails.
func mayGoOn(script string) bool {
	return slices.ContainsFunc([]string{"||", "if ", "while ", "until ", "trap "}, func(word string) bool { return strings.Contains(script, word) })
}

// Argv is Script for a program that is started without a shell.
func (n Network) Argv(argv []string) string {
	parsed, err := shell.Argv(argv, nil)
	if err != nil {
		return ""
	}
	return n.first(parsed, "")
}

// maxShown is where a command is cut, in bytes.
const maxShown = 200

func (n Network) first(script *shell.Script, text string) string {
	if slices.Contains(script.Assigned, "PATH") {
		return "" // its programs may be any
	}
	moves := slices.ContainsFunc(script.Commands, func(c shell.Command) bool { return c.Program() == "cd" || c.Program() == "pushd" })
	if moves || n.Remote == nil {
		n.Remote = func(string, string) (string, bool) { return "", false }
	}
	for i := range script.Commands {
		c := &script.Commands[i]
		if c.Wraps || !installed(c.Words[0]) || defines(text, c.Program()) || slices.Contains(c.Assigned, "PATH") {
			continue
		}
		if n.lacks(c) {
			shown := c.String()
			if len(shown) > maxShown {
				shown = strings.ToValidUTF8(shown[:maxShown], "") + "…"
			}
			return shown
		}
	}
	return ""
}

// installed reports whether a program is one of the system, not of the workspace.
func installed(program shell.Word) bool {
	if !program.Known {
		return false
	}
	dir, _, isPath := cutLast(program.Text)
	return !isPath || slices.Contains([]string{"/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin"}, dir)
}

func cutLast(path string) (dir, name string, ok bool) {
	at := strings.LastIndexByte(path, '/')
	if at < 0 {
		return "", path, false
	}
	return path[:at], path[at+1:], true
}

// defines reports whether a script seems to define a function or an alias of that name.
func defines(text, name string) bool {
	return name == "" || strings.Contains(text, name+"()") || strings.Contains(text, name+" ()") ||
		strings.Contains(text, "function "+name) || strings.Contains(text, "alias "+name+"=")
}

// lacks reports whether a command is known to need what is not there.
func (n Network) lacks(c *shell.Command) bool {
	args := c.Words[1:]
	for _, arg := range args {
		switch arg.Text {
		case "--help", "-h", "--version", "-V", "version", "help", "--offline":
			return false
		case "--connect-to", "--resolve", "-x", "--proxy", "-J":
			if n.Reach != nil {
				return false // the host that is named is not the one that is asked
			}
		}
	}
	program := c.Program()
	if isPython(program) { // python -m pip
		if len(args) < 2 || args[0].Text != "-m" {
			return false
		}
		program, args = args[1].Text, args[2:]
	}
	switch {
	case program == "git":
		return gitNeeds(n.Reach, args, n.Remote)
	case clients[program] != nil:
		return clients[program](n.Reach, args)
	default:
		cached := n.Cache && managers[program].cache
		return n.Reach == nil && !cached && installs(program, args, c.Assigned)
	}
}

func isPython(program string) bool {
	rest, ok := strings.CutPrefix(program, "python")
	return ok && strings.Trim(rest, "0123456789.") == ""
}

// positional returns the arguments that are no options, nor values of the options of
// which valued has the letter: up to the first that is not known.
func positional(args []shell.Word, valued string) []string {
	var found []string
	for i := 0; i < len(args) && args[i].Known; i++ {
		switch text := args[i].Text; {
		case strings.HasPrefix(text, "--"):
		case strings.HasPrefix(text, "-") && len(text) > 1:
			if strings.IndexByte(valued, text[len(text)-1]) >= 0 {
				i++
			}
		default:
			found = append(found, text)
		}
	}
	return found
}

// Env are the variables by which package managers use what they have, and fail at once where that
// is not enough, instead of trying for a minute to reach what cannot be reached. pip
// says why only when it tries again.
func Env() map[string]string {
	return map[string]string{
		"npm_config_fetch_retries": "0", "npm_config_prefer_offline": "true", "npm_config_audit": "false",
		"npm_config_fund": "false", "npm_config_update_notifier": "false", "YARN_ENABLE_NETWORK": "0",
		"PIP_RETRIES": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_OFFLINE": "1", "POETRY_REQUESTS_MAX_RETRIES": "0",
		"CARGO_NET_OFFLINE": "true", "GOPROXY": "off", "MAVEN_ARGS": "--offline",
	}
}
