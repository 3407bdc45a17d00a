package shell_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// misread are scripts in which the parser takes for text what bash runs.
var misread = map[string]string{
	"a return behind a backslash":         "echo a \\\r\ntouch PWN",
	"a backslash at the end of a comment": "echo a # b \\\ntouch PWN",
	"one in a list":                       "x=(a # b \\\n$(touch PWN)\n)\nif :; then # \\\ntouch PWN\nfi",
	"a return in a comment":               "echo a # \\\r\ntouch PWN",
	"a return in a delimiter":             "echo <<A\r\nA\necho '\nA\r\ntouch PWN\n#'",
	"a line in an expansion":              "echo $\\\n{Y@P}",
	"a line in arithmetic":                "(\\\n(X))",
	"a line in a test":                    "[\\\n[ X -eq 1 ]]",
	"quotes in an expansion in quotes":    `echo "${X+'$(touch PWN)'}"`,
	"escapes in an expansion in quotes":   `echo "${X+$'\x24(touch PWN)'}"`,
	"in one in another":                   `echo "${X+${Y+'$(touch PWN)'}}"`,
	"in a here document":                  "cat <<A\n${X+'$(touch PWN)'}\nA",
	"a descriptor with a subscript":       `echo {a[$X]}>f`,
	"one for a here string":               `echo {a["X"]}<<< x`,
	"the end of a here document":          "echo $(cat <<A\nx\nA)\ntouch PWN\nA\n)",
	"one that ends behind its command":    "echo `cat <<A`\ntouch PWN\nA",
	"a process in an expansion":           `echo ${X%>(touch PWN)}; wait $!`,
	"it, and more":                        "echo $(cat <<-'A'\nx\n\tA x)\ntouch PWN\nA\n)",
	"an end that a backslash splits":      "cat <<EOF\nE\\\nOF\ntouch PWN\nEOF",
	"an end with an escape":               "cat <<$'A\\x42'\nx\nAB\ntouch PWN\nA\\x42\n",
	"a quote over the end":                "cat <<A \"\nA\n\"\nx\nA\ntouch PWN",
	"eval with an end of options":         "eval -- touch PWN",
	"an option before the script":         "sh +ec 'touch PWN'",
	"a descriptor below the directory":    "cd /dev; echo touch PWN | (cd /dev && sh stdin); cd - && echo touch PWN | sh ../../../../../../../../dev/stdin",
}

func TestParse_WhatTheParserMisreadsIsUnknown(t *testing.T) {
	t.Parallel()
	for name, script := range misread {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.True(t, seen(t, script), "must be unknown: %q", script)
			require.True(t, run(t, findBash(t), script), "bash runs nothing in %q", script)
		})
	}
}

// TestParse_OtherShellsAreNotBash: sh is another shell on many systems, where these run a program.
func TestParse_OtherShellsAreNotBash(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"redirections of both outputs": `echo hi &>/dev/null touch PWN`,
		"appended":                     `echo hi &>>/dev/null touch PWN`,
		"escapes in quotes":            `echo $'\'; touch PWN #'`,
		"conditions":                   `[[ x || touch == PWN ]]`,
		"arithmetic":                   `touch=1; PWN=2; ((touch - PWN))`,
		"arithmetic in brackets":       `touch=1; PWN=2; echo $[ 1 | touch - PWN ]`,
		"an assignment that adds":      `mkdir x+=; cp "$(command -v touch)" x+=/e; x+=/e PWN`,
	} {
		require.True(t, seen(t, script), name)
		if dash, err := exec.LookPath("dash"); err == nil {
			require.True(t, run(t, dash, script), "%s: dash runs nothing in %s", name, script)
		}
	}
}
