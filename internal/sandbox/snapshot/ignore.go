package snapshot

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"unicode"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/gitignore"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// OwnIgnoreFile is the name of a file in the root of a directory, with rules of gitignore(5): more
// paths that are left out of copies, and with "!" paths that are not.
const OwnIgnoreFile = ".toolfleetignore"

// maxIgnoreFile bounds what is read of an ignore file.
const maxIgnoreFile = 1 << 20

// secretFiles and secretDirs hold passwords, keys and tokens more often than anything else.
const (
	//nolint:gosec // names, none is a secret
	secretFiles = `.env*
!.env.example
!.env.sample
!.env.template
!.env.dist
*.pem
*.key
*.p12
*.pfx
*.jks
*.keystore
*.kdbx
id_rsa*
id_dsa*
id_ecdsa*
id_ed25519*
!id_*.pub
.git-credentials
.netrc
_netrc
.pgpass
.pypirc
**/.docker/config.json
credentials
*credentials*.json
*credentials*.y*ml
service-account*.json
secrets.y*ml
`
	//nolint:gosec // the same
	secretDirs = `.ssh/
.aws/
.azure/
.gnupg/
.kube/
**/.config/gcloud/
`
)

// mayHaveTokens reports whether a file of settings is left out when a token stands in it.
func mayHaveTokens(base string) bool {
	return strings.EqualFold(base, ".npmrc") || strings.EqualFold(base, ".yarnrc.yml")
}

// why a path is left out.
type why string

const (
	whyOwn     why = OwnIgnoreFile
	whySecret  why = "secrets"
	whyIgnored why = ".gitignore"
)

// Ignore decides which files of a directory are left out of copies, for [Options].Skip: files with
// names of secrets, files that .gitignore files exclude, and files that [OwnIgnoreFile] names,
// whose rules come last. Only that file leaves out files that git tracks, because the repository
// has them anyway. Paths below .git are not judged. Its methods are not safe for concurrent use.
type Ignore struct {
	root    *os.Root
	all     bool
	own     gitignore.Rules
	secrets map[bool]gitignore.Rules   // of directories, and of files
	rules   map[string]gitignore.Rules // by directory
	tracked map[string]bool            // and the directories that it is in
	within  map[string]why             // directories that are left out but for what git tracks in them
	told    map[string]bool            // paths that are left out
	left    map[why][]string           // the paths that the next [Ignore.LeftOut] names
}

// NewIgnore reads what root says. tracked are the files that git tracks in it; all is whether what
// .gitignore files exclude takes part.
func NewIgnore(root *os.Root, tracked []string, all bool) *Ignore {
	i := &Ignore{
		root: root, all: all, rules: map[string]gitignore.Rules{}, tracked: map[string]bool{}, within: map[string]why{},
		secrets: map[bool]gitignore.Rules{ // in lower case: some file systems know a file by both names
			true: gitignore.Rules{}.With(".", strings.ToLower(secretDirs)), false: gitignore.Rules{}.With(".", strings.ToLower(secretFiles)),
		},
		told: map[string]bool{}, left: map[why][]string{},
	}
	i.own = gitignore.Rules{}.With(".", string(i.read(OwnIgnoreFile)))
	for _, name := range tracked {
		for ; name != "." && name != "/" && !i.tracked[name]; name = path.Dir(name) {
			i.tracked[name] = true
		}
	}
	return i
}

// read returns a file's content; nil if it cannot be read.
func (i *Ignore) read(name string) []byte {
	info, err := i.root.Lstat(name)
	if err != nil || !info.Mode().IsRegular() { // git follows no link there, either
		return nil
	}
	file, err := regular.OpenIn(i.root, name)
	if err != nil {
		return nil
	}
	defer file.Close()
	content, _ := io.ReadAll(io.LimitReader(file, maxIgnoreFile)) // what can be read
	return content
}

// Skip reports whether a path is left out. A directory is asked about before what is in it.
func (i *Ignore) Skip(name string, isDir bool) bool {
	cause := i.why(name, isDir)
	if cause == "" {
		return false
	}
	if cause != whyOwn && i.tracked[name] {
		if isDir {
			i.within[name] = cause
		}
		return false
	}
	if !i.told[name] {
		i.told[name] = true
		i.left[cause] = append(i.left[cause], name)
	}
	return true
}

// why says what leaves a path out; "" is nothing.
func (i *Ignore) why(name string, isDir bool) why {
	if excluded, known := i.own.Judge(name, isDir); excluded {
		return whyOwn
	} else if known {
		return ""
	}
	if above := i.within[path.Dir(name)]; above != "" {
		return above
	}
	switch {
	case slices.Contains(strings.Split(name, "/"), ".git"):
		return ""
	case i.secrets[isDir].Excludes(strings.ToLower(name), isDir), !isDir && i.hasToken(name):
		return whySecret
	case !i.all && i.rulesIn(path.Dir(name)).Excludes(name, isDir):
		return whyIgnored
	}
	return ""
}

// hasToken reports whether a file of settings has a token.
func (i *Ignore) hasToken(name string) bool {
	if !mayHaveTokens(path.Base(name)) {
		return false
	}
	content := bytes.ToLower(i.read(name))
	return bytes.Contains(content, []byte("_auth")) || bytes.Contains(content, []byte("_password")) || bytes.Contains(content, []byte("authtoken"))
}

// rulesIn are those of the .gitignore files of a directory and of all above.
func (i *Ignore) rulesIn(dir string) gitignore.Rules {
	if rules, known := i.rules[dir]; known {
		return rules
	}
	var rules gitignore.Rules
	if dir != "." {
		rules = i.rulesIn(path.Dir(dir))
	}
	if content := i.read(path.Join(dir, ".gitignore")); len(content) > 0 {
		rules = rules.With(dir, string(content))
	}
	i.rules[dir] = rules
	return rules
}

// maxNamed is how many paths are named.
const maxNamed = 4

// LeftOut names the paths that were left out since the last call, such as ".env (secrets), a, b, c,
// d and 3 more (.gitignore)", without those of [OwnIgnoreFile]; "" means none.
func (i *Ignore) LeftOut() string {
	var told []string
	for _, cause := range []why{whySecret, whyIgnored} {
		names := i.left[cause]
		if len(names) == 0 {
			continue
		}
		slices.Sort(names)
		text := strings.Join(names[:min(len(names), maxNamed)], ", ")
		if more := len(names) - maxNamed; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		told = append(told, fmt.Sprintf("%s (%s)", text, cause))
	}
	clear(i.left)
	return strings.Join(told, ", ")
}

// guarded reports whether a file at a path would change one of the protected paths: it is one, or
// below one, or a link on the way to one. File systems differ in which names they treat as the
// same; a name that any of them may treat as protected is protected here.
func guarded(places []string, name string, is protocol.FileType) bool {
	return slices.ContainsFunc(places, func(place string) bool {
		want, have := strings.Split(place, "/"), strings.Split(name, "/")
		if len(have) < len(want) && is == protocol.TypeDir {
			return false
		}
		for i := range min(len(want), len(have)) {
			if !alike(want[i], have[i]) {
				return false
			}
		}
		return true
	})
}

// alike reports whether two names may be one: letters that differ in case only are the same for the
// file systems of macOS and Windows, invisible characters are nothing for some, and so are
// dots and spaces at the end for others, which also know a file under a short name.
func alike(a, b string) bool {
	a, b = bare(a), bare(b)
	return strings.EqualFold(a, b) || short(a, b) || short(b, a)
}

// bare is a name without what some file systems ignore.
func bare(name string) string {
	name = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, name)
	if trimmed := strings.TrimRight(name, ". "); trimmed != "" {
		return trimmed
	}
	return name
}

// shortBase is how many letters of a name its short form begins with, at most.
const shortBase = 6

// short reports whether a name may be the short form of another, as in GIT~1 for .git.
func short(name, of string) bool {
	base, number, found := strings.Cut(name, "~")
	if !found || base == "" || number == "" || number[0] < '0' || number[0] > '9' {
		return false
	}
	of = strings.ReplaceAll(strings.TrimLeft(of, "."), " ", "")
	of, _, _ = strings.Cut(of, ".")
	return len(base) <= shortBase && len(of) >= len(base) && strings.EqualFold(base, of[:len(base)])
}
