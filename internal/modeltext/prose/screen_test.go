package prose_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
)

func TestScreen(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ in, want string }{
		"plain":                 {"a\nb\n", "a\nb\n"},
		"lines of a terminal":   {"a\r\nb\r\n", "a\nb"},
		"progress":              {"1%\r50%\r100%\r\ndone\r\n", "100%\ndone"},
		"a shorter line over":   {"12345\rab\x1b[K\r\n", "ab"},
		"backspace":             {"abc\b\b\x1b[Kx\r\n", "ax"},
		"colours and a title":   {"\x1b]0;title\x07\x1b[1;31mred\x1b[0m\r\n", "red"},
		"a prompt of node":      {"\x1b[1G\x1b[0J> \x1b[3G1\x1b[4G+\x1b[5G1\r\n\x1b[33m2\x1b[39m\r\n\x1b[1G\x1b[0J> \x1b[3G", "> 1+1\n2\n>"},
		"up and over":           {"a\r\nb\r\n\x1b[2Ax\x1b[B\r\x1b[2Ky\r\n", "x\ny"},
		"a whole screen":        {"old\r\n\x1b[2J\x1b[H\x1b[3;5Hmenu\x1b[1;1Htop", "top\n\n    menu"},
		"characters in between": {"abcd\x1b[3D\x1b[@X\x1b[P\r\n", "aXcd"},
		"far away":              {"\x1b[999999;999999Hx", strings.Repeat("\n", 39) + strings.Repeat(" ", 999) + "x"},
		"unfinished sequence":   {"a\x1b[3", "a[3"},
		"bell and NUL":          {"a\a\x00\r\n", "a"},
		"left of the screen":    {"\b\ba\x1b[9Db\r\n", "b"},
		"above the screen":      {strings.Repeat("l\r\n", 45) + "\x1b[99AX", strings.Repeat("l\n", 6) + "X" + strings.Repeat("\nl", 38)},
		"below the screen":      {"a\x1b[99Bb\r\n", "a" + strings.Repeat("\n", 39) + " b"},
		"to the right":          {"a\x1b[2Cb\r\n", "a  b"},
		"to a row":              {"a\r\n\x1b[3dx\r\n", "a\n\nx"},
		"to a place":            {"\x1b[2;2fx\r\n", "\n x"},
		"a line removed":        {"abc\x1b[2Kx\r\n", "   x"},
		"its beginning removed": {"abcd\x1b[2D\x1b[1Kx\r\n", "  xd"},
		"all below removed":     {"a\r\nb\r\nc\r\n\x1b[2A\x1b[Jx\r\n", "a\nx"},
		"all removed":           {"old\r\nolder\r\n\x1b[2J\x1b[Hx", "x"},
	} {
		require.Equal(t, test.want, prose.Screen(test.in), name)
	}
}

func FuzzScreen(f *testing.F) {
	f.Add("\x1b[2J\x1b[H\x1b[3;5Hm\x1b[1;1Ht\b\b\r\n\x1b[K\x1b[1K\x1b[2K\x1b[J\x1b[5P\x1b[5@\x1b[3X\x1b[9A\x1b[9B\x1b[9C\x1b[9D")
	f.Fuzz(func(t *testing.T, s string) {
		if out := prose.Screen(s); strings.ContainsAny(out, "\x1b\b\x00") {
			t.Errorf("%q", out)
		}
	})
}
