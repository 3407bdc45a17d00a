package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// MaxFront bounds the size of a file with front matter, in bytes.
const MaxFront = 256 << 10

// FrontMatter reads a Markdown file: the YAML between its first two lines of --- into fields, of
// which unknown ones are ignored, and the text below. It reads what other programs accept, too: a
// byte order mark, and values with a colon that are not quoted. Errors name the line.
func FrontMatter(path string, fields any) (text string, err error) {
	content, err := regular.Read(path, MaxFront)
	if err != nil {
		return "", errors.Unwrap(err)
	}
	content = bytes.ReplaceAll(bytes.TrimPrefix(content, []byte("\uFEFF")), []byte("\r\n"), []byte("\n"))
	head, body, ok := bytes.Cut(bytes.TrimPrefix(append(content, '\n'), []byte("---")), []byte("\n---\n"))
	if !bytes.HasPrefix(content, []byte("---\n")) || !ok {
		return "", errors.New("line 1: must begin with front matter: a line ---, fields such as name and description, a line ---")
	}
	if err := yaml.Unmarshal(head, fields); err != nil && yaml.Unmarshal(quoted(head), fields) != nil {
		return "", fmt.Errorf("front matter: %w", err)
	}
	return strings.TrimSpace(string(body)), nil
}

// plainValue is a line of a field with a value that YAML reads as something else than a text: one
// with a colon in it, or with a mark at its beginning.
var plainValue = regexp.MustCompile("(?m)^([A-Za-z][\\w-]*:) +([*&!@%`].*|[^\\s\"'\\[{|>#].*(?:: .*|:))$")

// quoted quotes such values.
func quoted(head []byte) []byte {
	return plainValue.ReplaceAllFunc(head, func(line []byte) []byte {
		field := plainValue.FindSubmatch(line)
		return fmt.Appendf(nil, "%s '%s'", field[1], bytes.ReplaceAll(field[2], []byte("'"), []byte("''")))
	})
}
