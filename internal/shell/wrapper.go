package shell

import "strings"

// wrapper is a program that runs another one, given in its arguments.
type wrapper struct {
	flags    string   // short options without a value
	valued   string   // short options with a value
	long     []string // long options without a value, or with one behind "=" alone
	longWith []string // long options with a value: --name value or --name=value
	operands int      // arguments before the program
	assigns  bool     // NAME=VALUE may come before the program
	judged   bool     // it does more than to run the program
	inert    string   // short options with which no program is run

	script  string   // short options whose value is a script for sh
	scripts []string // long options whose value is a script for sh
	loose   bool     // a long option has its value behind "=", whatever its name
	joined  bool     // the program and its arguments are a script for sh
	numbers bool     // an argument before the program is a number, or is left out
	shell   bool     // without a program it runs a shell, which reads its input
}

// wrapperOf returns the wrapper of a name with its arguments.
func wrapperOf(name string, words []Word) (wrapper, bool) {
	w, known := namedWrapper(name)
	switch first := len(words) > 0 && words[0].Known; {
	case name == "setarch" && first && !strings.HasPrefix(words[0].Text, "-"):
		w.operands = 1
	case name == "runuser" && !mentions(words, "-u", "--user"):
		w.operands = 2
	}
	return w, known
}

// mentions reports whether one of the words is, or begins with, one of the options.
func mentions(words []Word, options ...string) bool {
	for _, word := range words {
		for _, option := range options {
			if strings.HasPrefix(word.Text, option) {
				return true
			}
		}
	}
	return false
}

func list(names string) []string { return strings.Fields(names) }

// namedWrapper returns the wrapper of a name. Options are those of coreutils, util-linux, procps,
// strace and others as Debian has them. Behind any other option the program is not known.
//
//nolint:cyclop,funlen,gocyclo,maintidx // a table
func namedWrapper(name string) (wrapper, bool) {
	switch name {
	case "env":
		return wrapper{flags: "i0v", valued: "uC", long: list("ignore-environment null"), longWith: list("unset chdir"), assigns: true}, true
	case "nohup", "setsid", "builtin":
		return wrapper{flags: "cfw"}, true
	case "command":
		return wrapper{flags: "p", inert: "vV"}, true
	case "exec":
		return wrapper{flags: "cl", valued: "a"}, true
	case "timeout":
		return wrapper{flags: "vpf", valued: "ks", long: list("foreground preserve-status verbose"), longWith: list("kill-after signal"), operands: 1}, true
	case "nice":
		return wrapper{valued: "n", longWith: list("adjustment")}, true
	case "stdbuf":
		return wrapper{valued: "ioe", longWith: list("input output error")}, true
	case "time":
		return wrapper{flags: "pvq", valued: "f"}, true
	case "xargs":
		return wrapper{
			flags: "0rtpx", valued: "InPLdaEs", long: list("null no-run-if-empty verbose replace max-lines"),
			longWith: list("max-args max-procs delimiter arg-file"),
		}, true
	case "sudo", "doas":
		return wrapper{flags: "EHnSbkKP", valued: "ugpCDRTUh", longWith: list("user group"), assigns: true, judged: true}, true
	case "busybox", "toybox", "eatmydata", "torsocks":
		return wrapper{}, true
	case "chroot":
		return wrapper{operands: 1, longWith: list("userspec groups"), long: list("skip-chdir"), judged: true, shell: true}, true

	// How and where a process runs.
	case "ionice":
		return wrapper{flags: "t", valued: "cn", inert: "pPu", long: list("ignore"), longWith: list("class classdata")}, true
	case "chrt":
		return wrapper{
			flags: "abdefiorRv", valued: "TPD", inert: "pm", operands: 1, numbers: true,
			long:     list("all-tasks batch deadline ext fifo idle other rr reset-on-fork verbose"),
			longWith: list("sched-runtime sched-period sched-deadline"),
		}, true
	case "taskset":
		return wrapper{flags: "ac", inert: "p", long: list("all-tasks cpu-list"), operands: 1}, true
	case "setarch", "linux32", "linux64", "uname26", "i386", "i686", "x86_64":
		return wrapper{
			flags: "BFILRSTXZ3v", long: list("32bit fdpic-funcptrs short-inode addr-compat-layout addr-no-randomize whole-seconds sticky-timeouts read-implies-exec mmap-page-zero 3gb 4gb uname-2.6 verbose"),
		}, true
	case "prlimit":
		return wrapper{flags: "cdefilmnqrstuvxy0123456789:=unlimited", inert: "p", long: list("core data nice fsize sigpending memlock rss nofile msgqueue rtprio stack cpu nproc as locks rttime verbose")}, true
	case "choom":
		return wrapper{valued: "n", inert: "p", longWith: list("adjust")}, true
	case "uclampset":
		return wrapper{flags: "asRv", valued: "mM", inert: "p", long: list("all-tasks system reset-on-fork verbose"), longWith: list("util-min util-max")}, true
	case "numactl":
		return wrapper{flags: "abl", valued: "NmiCpP", inert: "sH", long: list("all balancing localalloc cpunodebind membind interleave physcpubind preferred preferred-many weighted-interleave"), judged: true}, true
	case "flock":
		return wrapper{
			flags: "eFnosux", valued: "Ew", operands: 1, script: "c", scripts: list("command"), judged: true,
			long: list("exclusive no-fork nb nonblock close shared unlock verbose"), longWith: list("timeout wait conflict-exit-code"),
		}, true
	case "systemd-inhibit":
		return wrapper{long: list("no-pager no-legend no-ask-password"), longWith: list("what who why mode")}, true
	case "systemd-run", "run0":
		return wrapper{
			flags: "tPGqrSd", valued: "pEupHM", judged: true, shell: true,
			long:     list("user system scope pty pipe wait quiet collect same-dir remain-after-exit send-sighup no-block no-ask-password shell"),
			longWith: list("unit property description slice uid gid nice working-directory setenv service-type on-active on-boot on-startup on-calendar host machine"),
		}, true

	// As whom, and in which namespaces.
	case "unshare":
		return wrapper{
			flags: "fmuinpCUTrcV", valued: "wRSGl", judged: true, shell: true,
			long:     list("mount uts ipc net pid user cgroup time fork map-root-user map-current-user map-auto keep-caps mount-proc mount-binfmt kill-child"),
			longWith: list("propagation setgroups root wd setuid setgid map-user map-group map-users map-groups monotonic boottime owner load-interp"),
		}, true
	case "nsenter":
		return wrapper{
			flags: "amuinpCUTFZce", valued: "tNSGW", judged: true, shell: true,
			long:     list("all mount uts ipc net pid user cgroup time root wd no-fork follow-context preserve-credentials keep-caps env join-cgroup user-parent"),
			longWith: list("target setuid setgid wdns net-socket"),
		}, true
	case "setpriv":
		return wrapper{
			flags: "d", judged: true, long: list("clear-groups keep-groups init-groups no-new-privs nnp reset-env"),
			longWith: list("reuid regid euid egid ruid rgid groups inh-caps ambient-caps bounding-set securebits pdeathsig ptracer selinux-label apparmor-profile landlock-access landlock-rule seccomp-filter"),
		}, true
	case "su":
		return wrapper{
			flags: "lmpfPT", valued: "gGsw", operands: 2, script: "c", scripts: list("command session-command"), judged: true, shell: true,
			long: list("login preserve-environment fast pty no-pty"), longWith: list("group supp-group shell whitelist-environment"),
		}, true
	case "runuser":
		return wrapper{
			flags: "lmpfPT", valued: "gGswu", script: "c", scripts: list("command session-command"), judged: true, shell: true,
			long: list("login preserve-environment fast pty no-pty"), longWith: list("group supp-group shell whitelist-environment user"),
		}, true
	case "sg":
		return wrapper{operands: 1, script: "c", joined: true, judged: true}, true
	case "gosu", "su-exec":
		return wrapper{operands: 1, judged: true}, true
	case "pkexec":
		return wrapper{judged: true, long: list("disable-internal-agent keep-cwd"), longWith: list("user")}, true
	case "runcon":
		return wrapper{flags: "c", valued: "turl", operands: 1, long: list("compute"), longWith: list("type user role range"), judged: true}, true
	case "fakeroot":
		return wrapper{flags: "u", valued: "lisbf", long: list("unknown-is-real"), longWith: list("lib faked"), shell: true}, true

	// What watches a process, or its output.
	case "watch":
		return wrapper{
			flags: "bcCdegprtwx", valued: "nqs", joined: true,
			long: list("beep color no-color differences errexit chgexit precise no-rerun no-title no-wrap exec"), longWith: list("interval equexit shotsdir"),
		}, true
	case "script":
		return wrapper{
			flags: "aefq", valued: "EIOBTmo", operands: 1, script: "c", scripts: list("command"), judged: true, shell: true,
			long: list("append return flush force quiet timing"), longWith: list("echo log-in log-out log-io log-timing logging-format output-limit"),
		}, true
	case "strace":
		return wrapper{
			flags: "cCdDfFhiknNqrtTvVwxyYzZ", valued: "abeEIoOpPsSuUX", judged: true,
			long:     list("follow-forks summary summary-only output-separately quiet daemonize decode-fds decode-pids successful-only failed-only seccomp-bpf"),
			longWith: list("trace signal inject fault read write output string-limit columns user env attach argv0"),
		}, true
	case "ltrace":
		return wrapper{flags: "bcCfhiLrStTV", valued: "aADeFlnopsuwxX", judged: true}, true
	case "valgrind":
		return wrapper{flags: "qv", loose: true, judged: true}, true
	case "firejail":
		return wrapper{loose: true, judged: true, shell: true}, true
	case "perf":
		return wrapper{flags: "agvqdB", valued: "eoFrpCtx", operands: 1, judged: true}, true
	case "chronic":
		return wrapper{flags: "ve"}, true
	case "tini":
		return wrapper{flags: "gsvw", valued: "ep"}, true
	case "dumb-init":
		return wrapper{flags: "cv", valued: "r", long: list("single-child verbose"), longWith: list("rewrite")}, true
	case "caffeinate":
		return wrapper{flags: "dimsu", valued: "tw"}, true
	case "catchsegv", "nocache":
		return wrapper{valued: "n"}, true
	case "setlock":
		return wrapper{flags: "nNxX", operands: 1, judged: true}, true
	case "ifne":
		return wrapper{flags: "n"}, true
	case "unbuffer":
		return wrapper{flags: "p"}, true
	case "proxychains", "proxychains4":
		return wrapper{flags: "q", valued: "f"}, true
	case "faketime":
		return wrapper{flags: "fm", operands: 1}, true
	case "dbus-run-session":
		return wrapper{longWith: list("config-file dbus-daemon")}, true
	case "ssh-agent":
		return wrapper{flags: "cDds", valued: "aEOPt", inert: "kuU", judged: true}, true
	case "xvfb-run":
		return wrapper{flags: "al", valued: "efnpsw", long: list("auto-servernum auto-display listen-tcp"), longWith: list("auth-file error-file fbdir server-num server-args wait xauth-protocol")}, true
	case "parallel", "hyperfine", "pee", "entr", "rlwrap", "start-stop-daemon", "daemonize", "bwrap", "proot", "chpst", "softlimit", "envdir", "tmux", "screen":
		// Its arguments may run whatever they say.
		return wrapper{operands: -1}, true
	default:
		return wrapper{}, false
	}
}
