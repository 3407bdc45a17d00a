package policy

import (
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/shell"
)

// globals are the options that a program has before its subcommand. Policies are written about
// these programs. An option that is not known may have the next word as its value, so behind it
// any word may be the subcommand.
type globals struct {
	flags  string // without a value
	valued string // with one: --name value, --name=value, and -nvalue for single letters
	// harmlessFlags and harmlessValued are known as well, and change nothing of what the program
	// runs: a rule that allows the subcommand allows it with them.
	harmlessFlags, harmlessValued string
}

func globalsOf(program string) globals {
	switch program {
	case "git":
		return globals{
			flags:         "-p --paginate --bare --exec-path --html-path --man-path --info-path --no-lazy-fetch --no-advice",
			valued:        "-C -c --git-dir --work-tree --namespace --super-prefix --config-env --list-cmds --attr-source",
			harmlessFlags: "-P --no-pager --no-optional-locks --no-replace-objects --literal-pathspecs --glob-pathspecs --noglob-pathspecs --icase-pathspecs",
		}
	case "docker", "podman":
		return globals{
			flags: "--tls --tlsverify --remote -r", valued: "-H --host -c --context --config --tlscacert --tlscert --tlskey --url --connection --root --runroot",
			harmlessFlags: "-D --debug", harmlessValued: "-l --log-level",
		}
	case "kubectl":
		return globals{
			flags:         "--insecure-skip-tls-verify --match-server-version --disable-compression",
			valued:        "--kubeconfig --context --cluster --user --as --as-group --as-uid --token --username --password -s --server --certificate-authority --client-certificate --client-key --tls-server-name --cache-dir --profile --profile-output",
			harmlessFlags: "--warnings-as-errors", harmlessValued: "-n --namespace --request-timeout -v --v",
		}
	case "npm":
		return globals{
			flags:         "-g --global -y --yes -f --force --ws --workspaces --include-workspace-root --if-present --ignore-scripts --offline --prefer-offline --json --dry-run --no-save -d -dd -ddd --foreground-scripts",
			valued:        "--prefix -C -w --workspace --registry --userconfig --globalconfig --cache --script-shell --tag --omit --include --otp --access",
			harmlessFlags: "-s --silent -q --quiet --verbose --no-fund --no-audit --no-color --no-progress", harmlessValued: "--loglevel",
		}
	case "go":
		return globals{valued: "-C"}
	case "cargo":
		return globals{
			valued:        "-C --config -Z",
			harmlessFlags: "-q --quiet -v -vv --verbose --offline --locked --frozen", harmlessValued: "--color",
		}
	case "aws":
		return globals{
			flags: "--debug --no-verify-ssl --no-sign-request --cli-auto-prompt", valued: "--profile --endpoint-url --query --ca-bundle --cli-binary-format",
			harmlessFlags: "--no-cli-pager --no-paginate --no-cli-auto-prompt", harmlessValued: "--region --output --color --cli-read-timeout --cli-connect-timeout",
		}
	case "gcloud":
		return globals{
			flags: "--log-http", valued: "--account --configuration --flags-file --impersonate-service-account --access-token-file --billing-project --flatten --trace-token",
			harmlessFlags: "-q --quiet --no-user-output-enabled --user-output-enabled", harmlessValued: "--project --format --verbosity",
		}
	case "terraform", "tofu":
		return globals{flags: "-help -version", valued: "-chdir"}
	case "systemctl":
		return globals{
			flags:         "--user --system --global --now -f --force --no-ask-password --no-block --no-reload --wait --runtime --failed -i --dry-run",
			valued:        "-H --host -M --machine --root --image --job-mode -s --signal --kill-who",
			harmlessFlags: "--no-pager -q --quiet -a --all -l --full --no-legend --plain", harmlessValued: "-t --type --state -p --property -o --output -n --lines",
		}
	default:
		return globals{}
	}
}

func isOption(text string) bool { return len(text) > 1 && (text[0] == '-' || text[0] == '+') }

// among reports whether an option is in a list, and whether its value is in the same word.
func among(list, text string) (is, attached bool) {
	name, _, attached := strings.Cut(text, "=")
	if slices.Contains(strings.Fields(list), name) {
		return true, attached
	}
	short := len(text) > 2 && text[0] == '-' && text[1] != '-' && slices.Contains(strings.Fields(list), text[:2])
	return short, short
}

// skip returns how many words an option is, 0 when it is not known.
func (g globals) skip(text string) int {
	for _, valued := range []string{g.valued, g.harmlessValued} {
		if is, attached := among(valued, text); is && attached {
			return 1
		} else if is {
			return 2
		}
	}
	name, _, _ := strings.Cut(text, "=")
	if slices.Contains(strings.Fields(g.flags+" "+g.harmlessFlags), name) {
		return 1
	}
	return 0
}

// skipHarmless returns the words behind options that change nothing of what a program runs.
func (g globals) skipHarmless(words []shell.Word) []shell.Word {
	known := globals{flags: g.harmlessFlags, valued: g.harmlessValued}
	for len(words) > 0 && words[0].Known && isOption(words[0].Text) {
		n := known.skip(words[0].Text)
		if n == 0 || n > len(words) || slices.ContainsFunc(words[:n], func(w shell.Word) bool { return !w.Known && w.Many }) {
			break
		}
		words = words[n:]
	}
	return words
}

// mayBegin reports whether a program's arguments may begin with the words of a pattern, when
// options are left out. An option of the pattern may stand anywhere.
func (g globals) mayBegin(pattern []string, words []shell.Word) bool {
	if len(pattern) == 0 {
		return true
	}
	if isOption(pattern[0]) {
		return slices.ContainsFunc(words, func(w shell.Word) bool { return !w.Known || matches(pattern[0], w.Text) }) && g.mayBegin(pattern[1:], words)
	}
	for len(words) > 0 && words[0].Known && isOption(words[0].Text) && pattern[0] != "*" {
		n := g.skip(words[0].Text)
		if n == 0 {
			return g.mayBeginLater(pattern, words[1:])
		}
		option, attached, _ := strings.Cut(words[0].Text, "=")
		for _, value := range append([]shell.Word{{Text: attached, Known: true}}, words[1:min(n, len(words))]...) {
			if !value.Known && value.Many || renames(option, value) {
				return true
			}
		}
		words = words[min(n, len(words)):]
	}
	if len(words) == 0 {
		return !slices.ContainsFunc(pattern, func(word string) bool { return word != "*" }) // at the end it stands for no word, too
	}
	if !words[0].Known {
		return g.mayBeginLater(pattern, words)
	}
	return matches(strings.ToLower(pattern[0]), strings.ToLower(words[0].Text)) && g.mayBegin(pattern[1:], words[1:])
}

// mayBeginLater is mayBegin for the words behind some that are not known.
func (g globals) mayBeginLater(pattern []string, words []shell.Word) bool {
	for i := range words {
		if !words[i].Known && words[i].Many || (!words[i].Known || matches(strings.ToLower(pattern[0]), strings.ToLower(words[i].Text))) && g.mayBegin(pattern[1:], words[i+1:]) {
			return true
		}
	}
	return false
}

// renames reports whether a setting of git may give its subcommands other names.
func renames(option string, value shell.Word) bool {
	if option != "-c" && option != "--config-env" {
		return false
	}
	name := strings.ToLower(value.Text)
	return !value.Known || strings.HasPrefix(name, "alias.") || strings.HasPrefix(name, "include")
}
