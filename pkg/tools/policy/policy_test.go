package policy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// judge plans a call as a session does, and judges it.
func judge(t *testing.T, rules, tool, arguments string, used map[string]int) policy.Verdict {
	t.Helper()
	p, err := policy.Parse("p.yaml", []byte(rules))
	require.NoError(t, err)
	j, err := policy.New(p)
	require.NoError(t, err)
	set, err := toolset.Named("core", "channels", "triggers")
	require.NoError(t, err)
	table, err := tools.NewTable(set...)
	require.NoError(t, err)
	_, plan, refusal := table.Plan(tools.Scope{Session: "s", Sandbox: "box"}, tool, arguments)
	require.Nil(t, refusal)
	return j.Judge(policy.Call{Tool: tool, Plan: plan, Used: used})
}

func sh(command string) string {
	encoded, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		panic(err)
	}
	return string(encoded)
}

// types are the arguments of process that type a text.
func types(text string) string {
	encoded, err := json.Marshal(map[string]string{"action": "send", "process": "p-1", "text": text})
	if err != nil {
		panic(err)
	}
	return string(encoded)
}

func TestJudge(t *testing.T) {
	t.Parallel()
	const gitOnly = "commands: {allow: [git status, git diff, 'go test', cat, cd, ./run.sh, 'ls *'], deny: [git push]}"
	for _, test := range []struct {
		name, rules, tool, arguments string
		decision                     policy.Decision
		rule                         string
	}{
		{"nothing forbids nothing", "{}", "bash", sh("rm -rf /"), policy.Allowed, ""},
		{"a denied tool", "tools: {deny: [bash]}", "bash", sh("ls"), policy.Denied, "tools.deny"},
		{"beside a denied tool", "tools: {deny: [bash]}", "read", `{"path":"a"}`, policy.Allowed, ""},
		{"a pattern of tools", "tools: {deny: ['*_code']}", "run_code", `{"code":"1"}`, policy.Denied, "tools.deny"},
		{"not in the list", "tools: {allow: [read, gl*]}", "bash", sh("ls"), policy.Denied, "tools.allow"},
		{"in the list", "tools: {allow: [read, gl*]}", "read", `{"path":"a"}`, policy.Allowed, ""},
		{"deny wins", "tools: {allow: [read], deny: [r*]}", "read", `{"path":"a"}`, policy.Denied, "tools.deny"},

		{"a class", "tools: {deny: ['@execute']}", "run_code", `{"code":"1"}`, policy.Denied, "tools.deny"},
		{"typing is in it", "tools: {deny: ['@execute']}", "process", types("ls"), policy.Denied, "tools.deny"},
		{"looking is not", "tools: {deny: ['@execute', '@write']}", "process", `{"action":"list"}`, policy.Allowed, ""},
		{"an allowed class", "tools: {allow: ['@read']}", "grep", `{"pattern":"x"}`, policy.Allowed, ""},
		{"beside it", "tools: {allow: ['@read']}", "write", `{"path":"a","content":""}`, policy.Denied, "tools.allow"},
		{"messages", "tools: {deny: ['@message']}", "send_message", `{"channel":"c","text":"x"}`, policy.Denied, "tools.deny"},
		{"reading messages", "tools: {deny: ['@message', '@trigger']}", "read_messages", `{"channel":"c"}`, policy.Allowed, ""},
		{"messages change no files", "tools: {deny: ['@execute', '@write', '@read', '@trigger']}", "send_message", `{"channel":"c","text":"x"}`, policy.Allowed, ""},
		{"a timer", "tools: {deny: ['@trigger']}", "add_timer", `{"seconds":1,"prompt":"x"}`, policy.Denied, "tools.deny"},
		{"a schedule", "tools: {deny: ['@trigger']}", "add_schedule", `{"cron":"@daily","prompt":"x"}`, policy.Denied, "tools.deny"},
		{"a watch", "approval: {tools: ['@trigger']}", "watch_channel", `{"channel":"c"}`, policy.Ask, "approval.tools"},
		{"the end of a trigger", "tools: {allow: ['@read']}", "remove_trigger", `{"trigger":"t"}`, policy.Denied, "tools.allow"},
		{"an allowed trigger", "tools: {allow: ['@trigger']}", "remove_trigger", `{"trigger":"t"}`, policy.Allowed, ""},
		{"a list of triggers", "tools: {deny: ['@trigger']}", "list_triggers", `{}`, policy.Allowed, ""},
		{"a class that is asked about", "approval: {tools: ['@write']}", "edit", `{"path":"a","old":"x","new":"y"}`, policy.Ask, "approval.tools"},

		{"an allowed command", gitOnly, "bash", sh("git status -s"), policy.Allowed, ""},
		{"several", gitOnly, "bash", sh("cd src && go test ./... | cat"), policy.Allowed, ""},
		{"one that is not", gitOnly, "bash", sh("git status; rm x"), policy.Denied, "commands.allow"},
		{"another subcommand", gitOnly, "bash", sh("git commit"), policy.Denied, "commands.allow"},
		{"in a substitution", gitOnly, "bash", sh("cat $(rm x)"), policy.Denied, "commands"},
		{"behind a wrapper", gitOnly, "bash", sh("timeout 5 rm x"), policy.Denied, "commands.allow"},
		{"an allowed one behind a wrapper", gitOnly, "bash", sh("timeout 5 env git diff"), policy.Allowed, ""},
		{"in a script", gitOnly, "bash", sh("sh -c 'rm x'"), policy.Denied, "commands.allow"},
		{"the program is not known", gitOnly, "bash", sh("$x status"), policy.Denied, "commands"},
		{"a word is not known", gitOnly, "bash", sh("git $x"), policy.Denied, "commands.deny"},
		{"an argument that is not known", gitOnly, "bash", sh("cat $x"), policy.Allowed, ""},
		{"a star is a word", gitOnly, "bash", sh("ls $x"), policy.Allowed, ""},
		{"which must be there", gitOnly, "bash", sh("ls"), policy.Denied, "commands.allow"},
		{"a file of that name", gitOnly, "bash", sh("./git status"), policy.Denied, "commands.allow"},
		{"a file that is allowed", gitOnly, "bash", sh("./run.sh fast"), policy.Allowed, ""},
		{"another PATH", gitOnly, "bash", sh("PATH=. git status"), policy.Denied, "commands.allow"},
		{"another PATH before", gitOnly, "bash", sh("export PATH=.; git status"), policy.Denied, "commands.allow"},
		{"another PATH beside", gitOnly, "bash", `{"command":"git status","env":{"PATH":"."}}`, policy.Denied, "commands.allow"},
		{"a function beside", gitOnly, "bash", `{"command":"git status","env":{"BASH_FUNC_git%%":"() { rm x; }"}}`, policy.Denied, "commands"},
		{"a variable beside", gitOnly, "bash", `{"command":"git status","env":{"LANG":"C"}}`, policy.Allowed, ""},
		{"a home of its own", gitOnly, "bash", sh("HOME=$PWD git status"), policy.Denied, "commands.allow"},
		{"settings of its own", gitOnly, "bash", sh("XDG_CONFIG_HOME=. git status"), policy.Denied, "commands.allow"},
		{"options in a variable", "commands: {allow: [tar]}", "bash", sh("TAR_OPTIONS=--to-command=x tar xf a"), policy.Denied, "commands.allow"},
		{"settings behind env", gitOnly, "bash", sh("env HOME=. git status"), policy.Denied, "commands.allow"},
		{"settings for all that follows", "commands: {allow: [echo, read, git]}", "bash", sh("echo . | read -r HOME; git status"), policy.Denied, "commands.allow"},
		{"a setting that is left out", "commands: {allow: [unset, git]}", "bash", sh("unset PATH; git status"), policy.Denied, "commands"},
		{"settings of npm", "commands: {allow: [npm test]}", "bash", sh("npm_config_script_shell=./x npm test"), policy.Denied, "commands.allow"},
		{"settings of yarn", "commands: {allow: [yarn test]}", "bash", sh("yarn_config_script_shell=./x yarn test"), policy.Denied, "commands.allow"},
		{"a proxy", "commands: {allow: [curl]}", "bash", sh("https_proxy=http://x curl a"), policy.Denied, "commands.allow"},
		{"settings of pnpm", "commands: {allow: [pnpm test]}", "bash", sh("pnpm_config_script_shell=./x pnpm test"), policy.Denied, "commands.allow"},
		{"no environment at all", "commands: {deny: [git push]}", "bash", sh("env - git push"), policy.Denied, "commands.deny"},
		{"another directory", gitOnly, "bash", sh("env -C x git status"), policy.Denied, "commands"},
		{"a variable of its own", gitOnly, "bash", sh(`dir=src; for f in a b; do cat "$dir/$f"; done`), policy.Allowed, ""},
		{"a variable that changes how text looks", gitOnly, "bash", sh("LC_ALL=C NO_COLOR=1 git status"), policy.Allowed, ""},
		{"arithmetic that evaluates", "commands: {allow: [echo]}", "bash", sh("x='a[$(touch PWN)]'; echo $((x))"), policy.Denied, "commands"},
		{"in another case", "commands: {deny: [git push]}", "bash", sh("GIT push"), policy.Denied, "commands.deny"},
		{"a subcommand in another case", "commands: {deny: [git send-email]}", "bash", sh("git SEND-EMAIL x"), policy.Denied, "commands.deny"},
		{"an option in another case", "commands: {deny: [git branch -D]}", "bash", sh("git branch -d x"), policy.Allowed, ""},
		{"a subcommand as a program in another case", "commands: {deny: [git push]}", "bash", sh("/usr/lib/git-core/Git-Push origin"), policy.Denied, "commands.deny"},
		{"a wrapper in another case", "commands: {deny: [git push]}", "bash", sh("Env git push"), policy.Denied, "commands.deny"},
		{"a shell in another case", "commands: {deny: [git push]}", "bash", sh("/bin/SH -c 'git push'"), policy.Denied, "commands.deny"},
		{"asked about in another case", "approval: {commands: [git push]}", "bash", sh("GIT push"), policy.Ask, "approval.commands"},
		{"an allowed one in another case", gitOnly, "bash", sh("GIT status"), policy.Denied, "commands.allow"},
		{"a wrapper of an allowed one in another case", gitOnly, "bash", sh("ENV git status"), policy.Denied, "commands.allow"},
		{"beside a deny list", "commands: {deny: [git push]}", "bash", sh("echo $((x))"), policy.Denied, "commands"},
		{"before it is asked about", "approval: {commands: [git push]}", "bash", sh("((x))"), policy.Ask, "approval.commands"},
		{"arithmetic with numbers", "commands: {allow: [echo]}", "bash", sh("x=1; echo $((x + 1))"), policy.Denied, "commands"},
		{"a file that bash reads first", "commands: {deny: [rm]}", "bash", `{"command":":","env":{"BASH_ENV":"f"}}`, policy.Denied, "commands"},
		{
			"a value from outside, behind an assignment that fails", "commands: {allow: [echo]}", "bash",
			`{"command":"x=$((1/0))\necho $((x))","env":{"x":"a[$(touch PWN)]"}}`, policy.Denied, "commands",
		},
		{"a program with the name of a wrapper", "commands: {allow: [echo]}", "bash", sh("./env echo hi"), policy.Denied, "commands.allow"},
		{"a wrapper of the system", "commands: {allow: [echo]}", "bash", sh("/usr/bin/env echo hi"), policy.Allowed, ""},
		{"a program that is not known, asked about", "approval: {commands: [git push]}", "bash", sh("x='git push'; $x"), policy.Ask, "approval.commands"},
		{"options before, which are not in the rule", gitOnly, "bash", sh("git --no-pager diff"), policy.Denied, "commands.allow"},
		{"an option without its value", "commands: {allow: [docker ps]}", "bash", sh("docker --log-level"), policy.Denied, "commands.allow"},
		{"an option whose value may be more words", "commands: {allow: [docker ps]}", "bash", sh("docker --log-level $x ps"), policy.Denied, "commands.allow"},
		{"options before, which are", "commands: {allow: [git --no-pager diff]}", "bash", sh("git --no-pager diff"), policy.Allowed, ""},
		{"options that run programs", gitOnly, "bash", sh("git -c core.fsmonitor=./x status"), policy.Denied, "commands.allow"},
		{"options that lead elsewhere", gitOnly, "bash", sh("git -C x status"), policy.Denied, "commands.allow"},
		{"a shell that reads a profile", gitOnly, "bash", sh("bash -lc 'git status'"), policy.Denied, "commands"},
		{"a shell that reads its input", "commands: {allow: [bash, git]}", "bash", sh("bash <<'E'\ngit status\nE"), policy.Denied, "commands"},
		{"a shell that has none", "commands: {allow: [bash]}", "bash", sh("bash"), policy.Allowed, ""},
		{"a shell at the end of a pipe", "commands: {deny: [git push]}", "bash", sh("echo git push | sh"), policy.Denied, "commands"},
		{"behind flock", "commands: {deny: [git push]}", "bash", sh("flock /tmp/l git push"), policy.Denied, "commands"},
		{"a script of watch", "commands: {deny: [git push]}", "bash", sh("watch -n 1 'git push'"), policy.Denied, "commands"},
		{"what parallel runs", "commands: {deny: [git push]}", "bash", sh("parallel git ::: push"), policy.Denied, "commands"},
		{"what xargs adds", "commands: {deny: [git push]}", "bash", sh("echo push | xargs git"), policy.Denied, "commands.deny"},
		{"what xargs adds instead of replacing", "commands: {deny: [git push]}", "bash", sh("echo push | xargs -I x -L1 git"), policy.Denied, "commands"},
		{"an option that hides a program", "commands: {deny: [git push]}", "bash", sh(`x=-exec; find . "$x" git push ";"`), policy.Denied, "commands"},
		{"a brace around quotes", "commands: {deny: [git push]}", "bash", sh(`git {push"",-n}`), policy.Denied, "commands.deny"},
		{"options of the program time", "commands: {deny: [git push]}", "bash", sh("sh -c 'time -o f git push'"), policy.Denied, "commands"},
		{"a subcommand as a program", "commands: {deny: [git push]}", "bash", sh("/usr/lib/git-core/git-push origin"), policy.Denied, "commands.deny"},
		{"variables beside a deny list", "commands: {deny: [rm]}", "bash", `{"command":"git status","env":{"PATH":"."}}`, policy.Allowed, ""},
		{"no shell at all", gitOnly, "bash", sh("cat 'x"), policy.Denied, "commands"},
		{"code in sh", gitOnly, "run_code", `{"code":"rm x","language":"sh"}`, policy.Denied, "commands.allow"},
		{"code in sh is not for bash", gitOnly, "run_code", `{"code":"cat x &>y rm z","language":"sh"}`, policy.Denied, "commands"},
		{"other code cannot be read", gitOnly, "run_code", `{"code":"1","language":"python"}`, policy.Denied, "commands.allow"},
		{"files are no commands", gitOnly, "write", `{"path":"a","content":""}`, policy.Allowed, ""},
		{"a denied command", "commands: {deny: [git push, rm]}", "bash", sh("echo x; git push -f"), policy.Denied, "commands.deny"},
		{"a denied program by its path", "commands: {deny: [rm]}", "bash", sh("/bin/rm x"), policy.Denied, "commands.deny"},
		{"a denied script, run by a shell", "commands: {deny: [npm publish]}", "bash", sh("bash /usr/bin/npm publish"), policy.Denied, "commands.deny"},
		{"a shell and its scripts", "commands: {allow: [bash]}", "bash", sh("bash build.sh fast"), policy.Allowed, ""},
		{"a denied file", "commands: {deny: [./deploy.sh]}", "bash", sh("./deploy.sh now"), policy.Denied, "commands.deny"},
		{"a denied wrapper", "commands: {deny: [sudo]}", "bash", sh("sudo ls"), policy.Denied, "commands.deny"},
		{"what is not denied", "commands: {deny: [git push]}", "bash", sh("git pull"), policy.Allowed, ""},
		{"code beside a deny list", "commands: {deny: [rm]}", "run_code", `{"code":"1"}`, policy.Allowed, ""},

		{"a format that sets PATH", "commands: {allow: [printf, git]}", "bash", sh("printf 'abc%n' PATH; git status"), policy.Denied, "commands"},
		{"a loop that sets PATH", "commands: {allow: [git]}", "bash", sh("for ((PATH=5;0;)); do :; done; git status"), policy.Denied, "commands"},
		{"words behind an option that are its program", "commands: {deny: [git push]}", "bash", sh("x='KILL 5 git push'; timeout -s $x 5 ls"), policy.Denied, "commands"},
		{"one that is its program, behind nice", "commands: {allow: [ls]}", "bash", sh("x='1 touch'; nice -n $x ls"), policy.Denied, "commands"},
		{"no PATH, for which a shell has one of its own", "commands: {allow: [go test]}", "bash", sh("env -i bash -c 'go test'"), policy.Denied, "commands.allow"},
		{"a PATH that is taken away", "commands: {allow: [go test]}", "bash", sh("env -vu PATH bash -c 'go test'"), policy.Denied, "commands"},
		{"a glob that is its program", "commands: {allow: [ls]}", "bash", sh("env -u * ls"), policy.Denied, "commands"},
		{"a value of one word", "commands: {allow: [ls]}", "bash", sh(`nice -n "$x" ls`), policy.Allowed, ""},
		{"a text to replace that is not known", "commands: {deny: [git push]}", "bash", sh(`x=ls; echo git push | xargs -I "$x" sh -c ls`), policy.Denied, "commands"},
		{"quoted options of the program time", "commands: {deny: [git push]}", "run_code", `{"code":"time '-p' git push","language":"sh"}`, policy.Denied, "commands"},
		{"behind what is not understood, typed", "commands: {deny: [git push]}", "process", types("[[ 1 ]] && git push"), policy.Denied, "commands.deny"},
		{"in a function, typed", "commands: {deny: [git push]}", "process", types("f() { git push; }"), policy.Denied, "commands.deny"},
		{"in a case, typed", "commands: {deny: [git push]}", "process", types("case x in x) git push;; esac"), policy.Denied, "commands.deny"},
		{"behind arithmetic, typed", "approval: {commands: [git push]}", "process", types("if ((x)); then git push; fi"), policy.Ask, "approval.commands"},
		{"a name on two lines", "commands: {deny: [git push]}", "process", types("g\\\nit push"), policy.Denied, "commands.deny"},
		{"another language with dollars", "commands: {deny: [git push]}", "process", types("print($x); say(\"$y\")"), policy.Allowed, ""},
		{"what eval runs, typed", "commands: {deny: [git push]}", "process", types("eval -- git push"), policy.Denied, "commands"},
		{"what is not understood, typed", "commands: {deny: [git push]}", "process", types("git push $((1))"), policy.Denied, "commands.deny"},
		{"a denied command typed", "commands: {deny: [git push]}", "process", types("cd src\ngit push"), policy.Denied, "commands.deny"},
		{"between lines that are none", "commands: {deny: [git push]}", "process", types("for x in a; do\ngit push $x\ndone"), policy.Denied, "commands.deny"},
		{"on two lines", "commands: {deny: [git push]}", "process", types("git \\\npush"), policy.Denied, "commands.deny"},
		{"behind a key", "commands: {deny: [git push]}", "process", types("\x15git push"), policy.Denied, "commands.deny"},
		{"a program that is not known, typed", "commands: {deny: [git push]}", "process", types("$x"), policy.Denied, "commands"},
		{"another command typed", "commands: {deny: [git push]}", "process", types("git status"), policy.Allowed, ""},
		{"what is no shell", "commands: {deny: [git push]}", "process", types("print('git push')"), policy.Allowed, ""},
		{"keys", "commands: {deny: [git push]}", "process", `{"action":"send","process":"p-1","keys":["up","enter"]}`, policy.Allowed, ""},
		{"what is typed at what is allowed", gitOnly, "process", types("make all"), policy.Allowed, ""},
		{"but not what is denied", gitOnly, "process", types("git push"), policy.Denied, "commands.deny"},
		{"typing that a person is asked about", "approval: {commands: [git push]}", "process", types("git push"), policy.Ask, "approval.commands"},
		{"typing as another tool", "tools: {deny: [process]}", "process", types("ls"), policy.Denied, "tools.deny"},

		{"a path to write", "paths: {write: [src, ./docs/]}", "write", `{"path":"docs/a.md","content":""}`, policy.Allowed, ""},
		{"the root itself", "paths: {write: [a.txt]}", "write", `{"path":"a.txt","content":""}`, policy.Allowed, ""},
		{"a path beside", "paths: {write: [src]}", "write", `{"path":"srcs/a","content":""}`, policy.Denied, "paths.write"},
		{"by another spelling", "paths: {write: [src]}", "write", `{"path":"src/../b","content":""}`, policy.Denied, "paths.write"},
		{"reading is free then", "paths: {write: [src]}", "read", `{"path":"b"}`, policy.Allowed, ""},
		{"a path to read", "paths: {read: [/workspace/src]}", "read", `{"path":"src/a"}`, policy.Allowed, ""},
		{"none to read", "paths: {read: [src]}", "grep", `{"pattern":"x"}`, policy.Denied, "paths.read"},
		{"what may be read may be written", "paths: {read: [src]}", "write", `{"path":"src/a","content":""}`, policy.Allowed, ""},
		{"and nothing else", "paths: {read: [src]}", "write", `{"path":"a","content":""}`, policy.Denied, "paths.write"},
		{"what may be written may be read", "paths: {read: [src], write: [out]}", "read", `{"path":"out/a"}`, policy.Allowed, ""},
		{"a command may touch everything", "paths: {write: [src]}", "bash", sh("ls"), policy.Denied, "paths.write"},
		{"unless it is excepted", "paths: {write: [src], except: [bash]}", "bash", sh("ls"), policy.Allowed, ""},
		{"or everything may be", "paths: {write: [.]}", "bash", sh("ls"), policy.Allowed, ""},

		{"calls are left", "max_calls: 3", "bash", sh("ls"), policy.Allowed, ""},
		{"none are left", "max_calls: 2", "bash", sh("ls"), policy.Denied, "max_calls"},
		{"none of a tool", "max_calls_of: {b*: 1}", "bash", sh("ls"), policy.Denied, "max_calls_of"},
		{"some of another", "max_calls_of: {bash: 1}", "read", `{"path":"a"}`, policy.Allowed, ""},
		{"none at all", "max_calls_of: {read: 0}", "read", `{"path":"a"}`, policy.Denied, "max_calls_of"},

		{"a tool to ask about", "approval: {tools: [wri*]}", "write", `{"path":"a","content":""}`, policy.Ask, "approval.tools"},
		{"a command to ask about", "approval: {commands: [git push]}", "bash", sh("git add . && git push"), policy.Ask, "approval.commands"},
		{"perhaps such a command", "approval: {commands: [git push]}", "bash", sh("git $x"), policy.Ask, "approval.commands"},
		{"code", "approval: {commands: [git push]}", "run_code", `{"code":"1"}`, policy.Ask, "approval.commands"},
		{"another command", "approval: {commands: [git push]}", "bash", sh("git add ."), policy.Allowed, ""},
		{"what is denied is not asked", "approval: {tools: [bash]}\ntools: {deny: [bash]}", "bash", sh("ls"), policy.Denied, "tools.deny"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v := judge(t, test.rules, test.tool, test.arguments, map[string]int{"bash": 1, "read": 1})
			require.Equal(t, test.decision, v.Decision, v.Reason)
			require.Equal(t, test.rule, v.Rule, v.Reason)
			require.Equal(t, test.decision == policy.Allowed, v.Reason == "")
			require.Equal(t, test.decision == policy.Ask, v.Timeout == 5*time.Minute)
		})
	}
}

// TestJudge_OptionsBeforeTheSubcommand: models write them without malice. Behind an option any word
// may be the subcommand.
func TestJudge_OptionsBeforeTheSubcommand(t *testing.T) {
	t.Parallel()
	for command, may := range map[string]bool{
		"git -C . push":                                    true,
		"git --no-pager push":                              true,
		"git -c x=y push origin":                           true,
		"git --git-dir=.git --work-tree . push":            true,
		"git -C \"$dir\" push":                             true,
		"git --new-option x push":                          true,
		"git -C $x log":                                    true, // it may be two words
		"git -c alias.p=push p":                            true,
		"git --config-env=alias.p=X p":                     true,
		"git -c Alias.p=push p":                            true,
		"git -c include.path=f p":                          true,
		"git -C . log --grep push":                         true,
		"git -C push status":                               true,
		"git -C \"$dir\" log":                              true,
		"git --no-pager log -p":                            false,
		"git log origin/push":                              false,
		"git log --grep push":                              false,
		"git push":                                         true,
		"docker --context x -H tcp://h push a":             true,
		"docker --log-level=debug build push":              true,
		"kubectl -n prod delete pod a":                     true,
		"kubectl delete -n prod pod a":                     true,
		"kubectl -nprod --context c delete --now pod a":    true,
		"kubectl -n delete get pods":                       false,
		"npm --prefix web publish":                         true,
		"npm -w a --silent run publish":                    true,
		"go -C mod install x":                              true,
		"go -C install test":                               true,
		"cargo +nightly --locked publish":                  true,
		"cargo --color always build":                       false,
		"aws --profile prod --region eu-1 s3 --debug rm x": true,
		"aws --profile rm s3 ls":                           false,
		"gcloud --project p compute instances delete a":    true,
		"gcloud compute --project=p instances delete a":    true,
		"gcloud --project delete compute instances list":   false,
		"terraform -chdir=prod apply":                      true,
		"terraform -chdir=apply plan":                      false,
		"systemctl --user -H host stop x":                  true,
		"systemctl -t service list-units":                  false,
		"make -j 4 deploy":                                 true,
		"make -j4 test":                                    false,
		"rm --force -r x --recursive":                      true,
	} {
		for rules, want := range map[string]policy.Decision{
			"commands: {deny: %s}": policy.Denied, "approval: {commands: %s}": policy.Ask, "at_most_once: {commands: %s}": policy.Allowed,
		} {
			v := judge(t, fmt.Sprintf(rules, `[git push, docker push, kubectl delete pod, npm publish, go install, cargo publish, aws s3 rm,
			  gcloud compute instances delete, terraform apply, systemctl stop, make deploy, rm --recursive]`), "bash", sh(command), nil)
			if !may {
				want = policy.Allowed
			}
			require.Equal(t, want, v.Decision, "%s: %s", command, v.Reason)
			require.Equal(t, may && want == policy.Allowed, v.AtMostOnce, command)
		}
	}
}

func TestJudge_ReasonsSayWhatIsAllowed(t *testing.T) {
	t.Parallel()
	for rules, want := range map[string]string{
		"commands: {allow: [ls, git diff]}": `The command "rm x" is not allowed in this session; allowed are: ls, git diff.`,
		"paths: {write: [src, docs]}":       "bash may change everything in the workspace, and in this session only these may be: src, docs. Use a tool that names a path.",
		"tools: {allow: [read]}":            "The tool bash is not allowed in this session; allowed are: read.",
	} {
		require.Equal(t, want, judge(t, rules, "bash", sh("ls; rm x"), nil).Reason)
	}
	require.Equal(t, "read may not read a: in this session only these may be: src, out.",
		judge(t, "paths: {read: [src], write: [src/b, out]}", "read", `{"path":"a"}`, nil).Reason)
}

// What cannot be known may reach outside of the workspace.
func TestJudge_AtMostOnce(t *testing.T) {
	t.Parallel()
	const rules = "at_most_once: {tools: ['pay*', write], commands: ['git push *', kubectl]}"
	for command, once := range map[string]bool{
		"git push":                          true,
		"make && git push -f origin | cat":  true,
		"/usr/bin/kubectl get pods":         true,
		"sh -c 'kubectl delete pod a'":      true,
		"git $x":                            true,
		"$(":                                true,
		"git pull; echo git push":           false,
		"kubectlx":                          false,
		"git pushx":                         false,
		"grep -r 'kubectl' . && git status": false,
	} {
		v := judge(t, rules, "bash", sh(command), nil)
		require.Equal(t, once, v.AtMostOnce, command)
		require.Equal(t, policy.Allowed, v.Decision, command)
	}
	require.True(t, judge(t, rules, "run_code", `{"code":"1"}`, nil).AtMostOnce)
	require.True(t, judge(t, rules, "write", `{"path":"a","content":""}`, nil).AtMostOnce)
	require.False(t, judge(t, rules, "read", `{"path":"a"}`, nil).AtMostOnce)
	require.False(t, judge(t, "{}", "bash", sh("git push"), nil).AtMostOnce)
	_, err := policy.Parse("p.yaml", []byte("at_most_once: {commands: ['']}"))
	require.ErrorContains(t, err, "at_most_once.commands[0]: is empty")
}

// A question names the line of the rule that asks.
func TestJudge_AQuestionSaysWhereItsRuleIs(t *testing.T) {
	t.Parallel()
	p, err := policy.Parse("p.yaml", []byte("max_calls: 9\napproval:\n  tools:\n    - write\n    - \"json_*\"\n  commands: [git push]\n"))
	require.NoError(t, err)
	j, err := policy.New(p, policy.Policy{Approval: policy.Approval{Tools: []string{"glob"}}}.From("--ask-for"))
	require.NoError(t, err)
	for source, call := range map[string]policy.Call{
		"p.yaml:4": {Tool: "write"}, "p.yaml:5": {Tool: "json_write"}, "--ask-for": {Tool: "glob"},
		"p.yaml:6": {Tool: "bash", Plan: tools.Plan{Payload: protocol.CommandRun{Command: "git push origin"}}},
	} {
		v := j.Judge(call)
		require.Equal(t, policy.Ask, v.Decision)
		require.Equal(t, source, v.Source)
	}
	p, err = policy.Parse("policies[0]", []byte(`{"approval":{"tools":["write"]}}`))
	require.NoError(t, err)
	j, err = policy.New(p)
	require.NoError(t, err)
	require.Equal(t, "policies[0]", j.Judge(policy.Call{Tool: "write"}).Source)
}

func TestJudge_PoliciesAllHaveToAgree(t *testing.T) {
	t.Parallel()
	minute, hour := policy.Duration(time.Minute), policy.Duration(time.Hour)
	j, err := policy.New(
		policy.Policy{MinLevel: "full", Approval: policy.Approval{Tools: []string{"read"}, Timeout: hour}},
		policy.Policy{MinLevel: "paths", Tools: policy.Names{Deny: []string{"bash"}}, Approval: policy.Approval{Tools: []string{"read", "write"}, Timeout: minute}},
		policy.Policy{AtMostOnce: policy.AtMostOnce{Tools: []string{"read"}}, Tools: policy.Names{Allow: []string{"read", "glob"}}},
	)
	require.NoError(t, err)
	require.Equal(t, "tools.deny", j.Judge(policy.Call{Tool: "bash"}).Rule, "the first that denies")
	v := j.Judge(policy.Call{Tool: "read"})
	require.Equal(t, policy.Ask, v.Decision)
	require.Equal(t, time.Minute, v.Timeout, "the shorter one")
	require.Equal(t, "full", v.MinLevel, "the higher one")
	require.True(t, v.AtMostOnce, "one is enough")
	v = j.Judge(policy.Call{Tool: "glob"})
	require.Equal(t, policy.Verdict{Decision: policy.Allowed, MinLevel: "full"}, v)
}

func TestJudge_ResourcesOfOthersHaveNoPath(t *testing.T) {
	t.Parallel()
	j, err := policy.New(policy.Policy{Paths: policy.Paths{Write: []string{"src"}}})
	require.NoError(t, err)
	plan := tools.Plan{Payload: wire.Noop{}, Resources: []protocol.Use{{Key: "account/acme", Access: protocol.Exclusive}}}
	require.Equal(t, policy.Allowed, j.Judge(policy.Call{Tool: "pay", Plan: plan}).Decision)
	require.Equal(t, policy.Denied, j.Judge(policy.Call{Tool: "pay", Plan: tools.Plan{Payload: wire.Noop{}}}).Decision, "the default is the whole sandbox")
}

func TestParse_FaultsHaveTheirLine(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"max_calls: 1\ntool: {}":          `p:2: there is no field "tool"; the fields are tools, commands, paths, max_calls`,
		"tools: {alow: [read]}":           `p:1: there is no field "alow"; the fields are allow, deny`,
		"tools:\n  allow: read":           "p:2: `read` is not what belongs here: it must be a list",
		"max_calls: many":                 "p:1: `many` is not what belongs here: it must be a whole number",
		"max_calls_of: [a]":               "p:1: a list is not what belongs here: it must be a mapping of names to whole numbers",
		"approval: {timeout: 5}":          `must be a time such as`,
		"approval: {timeout: -5s}":        `must be a time such as`,
		"max_calls: -1":                   "p: max_calls -1: must not be negative",
		"max_calls_of: {bash: -1}":        "max_calls_of.bash -1",
		"max_calls_of: {'@read': 1}":      "max_calls_of.@read: must be names of tools, not a class",
		"tools: {deny: ['@run']}":         `tools.deny "@run": classes of tools are @execute, @write, @read, @message, @trigger`,
		"min_level: some":                 `min_level "some": must be one of none, paths, full, kernel`,
		"paths: {write: [../x, /etc, a]}": `paths.write[0] "../x": must be a path in the workspace`,
		"paths: {read: [..]}":             `paths.read[0] "..": must be a path in the workspace`,
		"paths: {write: ['']}":            `paths.write[0] "": must be a path in the workspace`,
		"tools: {deny: [' ']}":            "tools.deny[0]: is empty",
		"a: 1\n---\nb: 1":                 `there is no field "a"`,
		"max_calls: 1\n---\nmax_calls: 2": "more than one document",
	} {
		_, err := policy.Parse("p", []byte(content))
		require.ErrorContains(t, err, want, content)
	}
	_, err := policy.New(policy.Policy{Approval: policy.Approval{Timeout: -1}})
	require.ErrorContains(t, err, "approval.timeout -1ns: must not be negative")
	p, err := policy.Parse("p", []byte("{}"))
	require.NoError(t, err)
	require.True(t, p.Zero())
}

// TestUnknownTools_OfEachField: a misspelled name would bind nothing.
func TestUnknownTools_OfEachField(t *testing.T) {
	t.Parallel()
	names := []string{"bash", "read", "run_code"}
	for rules, want := range map[string]string{
		"tools: {allow: [bsh]}":             `tools.allow "bsh": there is no such tool; did you mean "bash"?`,
		"tools: {deny: [Bash, '@execute']}": `tools.deny "Bash": there is no such tool; did you mean "bash"?`,
		"paths: {except: [runcode]}":        `paths.except "runcode": there is no such tool; did you mean "run_code"?`,
		"max_calls_of: {'rad*': 1}":         `max_calls_of "rad*": there is no such tool; did you mean "read"?`,
		"approval: {tools: [x_y_z]}":        `approval.tools "x_y_z": there is no such tool`,
		"at_most_once: {tools: [reed]}":     `at_most_once.tools "reed": there is no such tool; did you mean "read"?`,
	} {
		p, err := policy.Parse("p.yaml", []byte(rules))
		require.NoError(t, err)
		require.EqualError(t, p.UnknownTools(names), want)
	}
	p, err := policy.Parse("p.yaml", []byte("tools: {allow: [bash, 'r*', '@read']}\nmax_calls_of: {'*': 1}"))
	require.NoError(t, err)
	require.NoError(t, p.UnknownTools(names))
}

// TestParse_AnEmptyFileIsNoPolicy: it may be half a write, and nothing would be bound.
func TestParse_AnEmptyFileIsNoPolicy(t *testing.T) {
	t.Parallel()
	for _, content := range []string{" \n", "# tools: {deny: [bash]}\n", "---\n", "null\n", "~"} {
		_, err := policy.Parse("p.yaml", []byte(content))
		require.ErrorContains(t, err, "p.yaml: is empty; the fields of a policy are tools, commands, paths", content)
	}
}

func TestParse_TravelsAsJSON(t *testing.T) {
	t.Parallel()
	p, err := policy.Parse("p.yaml", []byte(`
tools: {allow: [a], deny: [b]}
commands: {allow: [c]}
paths: {read: [d], write: [e], except: [f]}
max_calls: 7
max_calls_of: {g: 8}
min_level: full
approval: {tools: [h], commands: [i j], timeout: 90s}
at_most_once: {tools: [k], commands: [l m]}
`))
	require.NoError(t, err)
	require.False(t, p.Zero())
	encoded, err := json.Marshal(p)
	require.NoError(t, err)
	again, err := policy.Parse("json", encoded)
	require.NoError(t, err)
	travelled, err := json.Marshal(again) // a policy also knows the lines of its file
	require.NoError(t, err)
	require.JSONEq(t, string(encoded), string(travelled))
	encoded, err = json.Marshal(policy.Policy{})
	require.NoError(t, err)
	require.Equal(t, []byte("{}"), encoded)
}

// A class that lacks a payload would leave open what a rule about it denies: the golden payloads of
// the wire are all there are, and each has a class or is named here.
func TestClasses_HaveEveryPayload(t *testing.T) {
	t.Parallel()
	none := []protocol.Kind{
		wire.KindToolRun, wire.KindMCPList, wire.KindMCPCall, wire.KindDialogOpen, wire.KindDialogContinue,
		wire.KindDialogEnd, wire.KindWorkspaceImport, wire.KindWorkspaceExport, wire.KindWorkspaceRemove,
		wire.KindWorkspaceRestore, wire.KindWorkspaceFork, wire.KindWorkspaceMerge, wire.KindTurnRun, wire.KindNoop, wire.KindStored, wire.KindHTTPFetch,
	}
	files, err := filepath.Glob("../../../internal/wire/testdata/v1/payload/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		payload, err := wire.DecodePayload(raw)
		require.NoError(t, err)
		if _, own := payload.(protocol.UnknownPayload); own || slices.Contains(none, wire.KindOf(payload)) {
			continue
		}
		j, err := policy.New(policy.Policy{Tools: policy.Names{Deny: []string{"@execute", "@write", "@read"}}})
		require.NoError(t, err)
		verdict := j.Judge(policy.Call{Tool: "any", Plan: tools.Plan{Payload: payload}})
		require.Equal(t, policy.Denied, verdict.Decision, file)
	}
}
