package prose_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
)

func TestRead(t *testing.T) {
	t.Parallel()
	const text = "one\ntwö\n\nfour"
	for name, test := range map[string]struct {
		text string
		page prose.Page
		want prose.PageText
	}{
		"everything":          {text, prose.Page{}, prose.PageText{Content: []byte(text), Column: 1, Lines: 4, FirstBytes: 3}},
		"some lines":          {text, prose.Page{First: 2, Limit: 2}, prose.PageText{Content: []byte("twö\n\n"), Column: 1, Lines: 2, FirstBytes: 4}},
		"the last":            {text, prose.Page{First: 4, Limit: 9}, prose.PageText{Content: []byte("four"), Column: 1, Lines: 1, FirstBytes: 4}},
		"an empty line":       {text, prose.Page{First: 3, Limit: 1}, prose.PageText{Content: []byte("\n"), Column: 1, Lines: 1}},
		"from a column":       {text, prose.Page{First: 1, Column: 3, Limit: 2}, prose.PageText{Content: []byte("e\ntwö\n"), Column: 3, Lines: 2, FirstBytes: 3}},
		"within a character":  {text, prose.Page{First: 2, Column: 4, Limit: 1}, prose.PageText{Content: []byte("\n"), Column: 5, Lines: 1, FirstBytes: 4}},
		"beyond a line":       {text, prose.Page{First: 1, Column: 99, Limit: 2}, prose.PageText{Content: []byte("\ntwö\n"), Column: 99, Lines: 2, FirstBytes: 3}},
		"beyond the last":     {text, prose.Page{First: 4, Column: 99}, prose.PageText{Column: 99, FirstBytes: 4}},
		"beyond the end":      {text, prose.Page{First: 5}, prose.PageText{Column: 1}},
		"nothing":             {"", prose.Page{}, prose.PageText{Column: 1}},
		"negative is nothing": {text, prose.Page{First: -1, Column: -1, Limit: -1}, prose.PageText{Content: []byte(text), Column: 1, Lines: 4, FirstBytes: 3}},
	} {
		for _, reader := range []io.Reader{strings.NewReader(test.text), iotest.OneByteReader(strings.NewReader(test.text))} {
			got, err := prose.ReadPage(reader, test.page)
			require.NoError(t, err, name)
			test.want.Bytes, test.want.Total = int64(len(test.text)), 4
			if test.text == "" {
				test.want.Total = 0
			}
			if len(got.Content) == 0 {
				got.Content = nil
			}
			require.Equal(t, test.want, got, name)
		}
	}
	broken := errors.New("broken")
	_, err := prose.ReadPage(io.MultiReader(strings.NewReader("x"), iotest.ErrReader(broken)), prose.Page{})
	require.ErrorIs(t, err, broken)
}

// TestRead_WhatDoesNotFit: whole lines, or a part of one in which no character is split,
// and reading on misses nothing.
func TestRead_WhatDoesNotFit(t *testing.T) {
	t.Parallel()
	short := strings.Repeat("x", 1000) + "\n"
	got, err := prose.ReadPage(strings.NewReader(strings.Repeat(short, 1000)), prose.Page{First: 3})
	require.NoError(t, err)
	require.Equal(t, prose.MaxPage/len(short), got.Lines)
	require.Len(t, got.Content, got.Lines*len(short))
	require.Equal(t, 1000, got.Total)

	long := "ab" + strings.Repeat("漢", prose.MaxPage) + "end"
	text := "first\n" + long + "\nlast\n"
	var all strings.Builder
	for column := int64(1); column <= int64(len(long)); {
		got, err := prose.ReadPage(strings.NewReader(text), prose.Page{First: 2, Column: column, Limit: 1})
		require.NoError(t, err)
		require.Equal(t, 1, got.Lines)
		require.Equal(t, 3, got.Total)
		require.EqualValues(t, len(long), got.FirstBytes)
		require.True(t, utf8.Valid(got.Content))
		require.Equal(t, column, got.Column)
		all.Write(got.Content)
		column += int64(len(got.Content))
	}
	require.Equal(t, long+"\n", all.String())
}

func FuzzRead(f *testing.F) {
	f.Add("one\ntwö\n", 1, int64(2), 1)
	f.Add("\xff\n\x80", 2, int64(1), 0)
	f.Fuzz(func(t *testing.T, text string, first int, column int64, limit int) {
		page := prose.Page{First: first, Column: column, Limit: limit}
		got, err := prose.ReadPage(strings.NewReader(text), page)
		require.NoError(t, err)
		require.EqualValues(t, len(text), got.Bytes)
		require.Contains(t, text, string(got.Content))
		inPieces, err := prose.ReadPage(iotest.OneByteReader(strings.NewReader(text)), page)
		require.NoError(t, err)
		require.Equal(t, string(got.Content), string(inPieces.Content))
		require.Equal(t, got.Lines, inPieces.Lines)
	})
}

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
