package gitguard

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// harmlessSections have settings that name no program, server or file to run, whatever they are.
var harmlessSections = []string{ //nolint:gochecknoglobals // a constant
	"advice", "apply", "author", "blame", "color", "column", "committer", "fsck", "index", "receive", "rerere", "stash", "status", "tag", "user",
	"versionsort", "worktree",
}

// harmlessNames are settings without a subsection, and harmlessOf those with one, by their section.
// What is not among them though it looks as if it belonged there: formats and options that can
// carry a command (rebase.instructionFormat, branch.*.mergeOptions), places that git writes to or
// copies from (core.worktree, gc.repackFilterTo, init.templateDir), servers (fetch.bundleURI).
var harmlessNames = map[string][]string{ //nolint:gochecknoglobals // a constant
	"branch": {"autosetupmerge", "autosetuprebase", "sort"},
	"clean":  {"requireforce"},
	"commit": {"cleanup", "gpgsign", "status", "verbose"},
	"core": {
		"abbrev", "autocrlf", "bare", "checkstat", "commentchar", "compression", "eol", "filemode", "hidedotfiles", "ignorecase",
		"ignorestat", "logallrefupdates", "longpaths", "precomposeunicode", "preloadindex", "quotepath",
		"repositoryformatversion", "safecrlf", "sharedrepository", "sparsecheckout", "sparsecheckoutcone", "splitindex", "symlinks",
		"trustctime", "untrackedcache", "whitespace",
	},
	"diff":       {"algorithm", "colormoved", "context", "ignoresubmodules", "indentheuristic", "mnemonicprefix", "noprefix", "renamelimit", "renames", "submodule", "wserrorhighlight"},
	"extensions": {"compatobjectformat", "noop", "objectformat", "partialclone", "preciousobjects", "refstorage", "relativeworktrees", "worktreeconfig"},
	"feature":    {"experimental", "manyfiles"},
	"fetch":      {"all", "fsckobjects", "negotiationalgorithm", "output", "parallel", "prune", "prunetags", "recursesubmodules", "showforcedupdates", "unpacklimit", "writecommitgraph"},
	"gc": {
		"aggressivedepth", "aggressivewindow", "auto", "autodetach", "autopacklimit", "bigpackthreshold", "cruftpacks", "logexpiry", "maxcruftsize",
		"packrefs", "pruneexpire", "reflogexpire", "reflogexpireunreachable", "rerereresolved", "rerereunresolved", "worktreepruneexpire", "writecommitgraph",
	},
	"init":        {"defaultbranch", "defaultobjectformat", "defaultrefformat"},
	"lfs":         {"repositoryformatversion"},
	"log":         {"abbrevcommit", "date", "decorate", "diffmerges", "follow", "initialdecorationset", "showroot", "showsignature"},
	"maintenance": {"auto", "autodetach", "strategy"},
	"merge":       {"autostash", "conflictstyle", "directoryrenames", "ff", "log", "renamelimit", "renames", "stat"},
	"pack": {
		"allowpackreuse", "compression", "depth", "deltacachelimit", "deltacachesize", "indexversion", "packsizelimit", "readreverseindex", "threads",
		"usebitmaps", "usepathwalk", "usesparse", "window", "windowmemory", "writebitmaphashcache", "writebitmaplookuptable", "writereverseindex",
	},
	"pull":      {"autostash", "ff", "rebase"},
	"push":      {"autosetupremote", "default", "followtags", "gpgsign", "negotiate", "recursesubmodules", "usebitmaps", "useforceifincludes"},
	"rebase":    {"abbreviatecommands", "autosquash", "autostash", "backend", "forkpoint", "maxlabellength", "missingcommitscheck", "rebasemerges", "reschedulefailedexec", "stat", "updaterefs"},
	"submodule": {"active", "fetchjobs", "propagatebranches", "recurse"},
	"transfer":  {"advertisesid", "credentialsinurl", "fsckobjects", "hiderefs", "unpacklimit"},
}

var harmlessOf = map[string][]string{ //nolint:gochecknoglobals // a constant
	"branch":      {"description", "merge", "pushremote", "rebase", "remote"},
	"gc":          {"reflogexpire", "reflogexpireunreachable"},
	"lfs":         {"access"},
	"maintenance": {"enabled", "schedule"},
	"remote":      {"fetch", "mirror", "partialclonefilter", "promisor", "prune", "prunetags", "push", "pushurl", "skipdefaultupdate", "skipfetchall", "tagopt", "url"},
	"submodule":   {"active", "branch", "fetchrecursesubmodules", "ignore", "shallow", "update", "url"},
}

// remoteName is the name of a remote; "." is the repository itself.
var remoteName = regexp.MustCompile(`^(\.|[A-Za-z0-9_][A-Za-z0-9_.-]*)$`)

// storages are forms of settings that git takes for a place when they are others.
var storages = regexp.MustCompile(`^[a-z0-9]*$`)

// split takes the key of a setting apart.
func split(key string) (section, subsection, name string) {
	first, last := strings.IndexByte(key, '.'), strings.LastIndexByte(key, '.')
	if first < 0 {
		return key, "", ""
	}
	if first == last {
		return key[:first], "", key[last+1:]
	}
	return key[:first], key[first+1 : last], key[last+1:]
}

// harmless reports whether git runs nothing because of a setting, and sends nothing elsewhere. What
// is not known is not: git gets new settings with every version.
func harmless(key, value string) bool {
	section, subsection, name := split(key)
	switch {
	case slices.Contains(harmlessSections, section), name == "": // git knows no setting without a section
		return true
	case name == "url" || name == "pushurl":
		return (section == "remote" || section == "submodule") && harmlessURL(value)
	case section == "branch" && (name == "remote" || name == "pushremote"), key == "extensions.partialclone":
		return remoteName.MatchString(value) || harmlessURL(value) // a path, too, may stand for a remote
	case key == "extensions.refstorage":
		return storages.MatchString(value)
	case section == "submodule" && name == "update":
		return !strings.HasPrefix(strings.TrimSpace(value), "!")
	case subsection == "":
		return slices.Contains(harmlessNames[section], name)
	default:
		return slices.Contains(harmlessOf[section], name)
	}
}

// shortURL is git's short form of SSH, as in git@example.com:project.git.
var shortURL = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(@[A-Za-z0-9_][A-Za-z0-9_.-]*)?:[^:-][^:]*$`)

// harmlessURL reports whether git reaches a server by a URL and runs nothing for it on this host. A
// path is not: pushing to it runs hooks there.
func harmlessURL(text string) bool {
	if strings.Contains(text, "://") { // what has no host is a path, as file:///x, or another program's
		u, err := url.Parse(text)
		return err == nil && u.Host != "" && !strings.HasPrefix(u.Host, "-") && slices.Contains([]string{"https", "http", "ssh", "git"}, u.Scheme) &&
			(u.User == nil || !strings.HasPrefix(u.User.Username(), "-"))
	}
	return shortURL.MatchString(text)
}

// driver is the driver of attributes that a setting gives a program, such as filter=lfs.
func driver(key string) (attribute string, ok bool) {
	section, subsection, name := split(key)
	programs := map[string][]string{"filter": {"clean", "smudge", "process"}, "diff": {"command", "textconv"}, "merge": {"driver"}}[section]
	return section + "=" + subsection, subsection != "" && slices.Contains(programs, name)
}

// words are what may be names of programs in the value of a setting.
func words(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(" \t\n\"'`!;&|<>()$=", r) })
}
