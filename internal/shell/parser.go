package shell

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// parser reads the text of one script from left to right.
type parser struct {
	*reader

	text      string
	pos       int
	depth     int        // scripts and substitutions around it
	within    int        // substitutions of this script around it
	documents []document // here documents whose text begins on the next line
}

// document is a here document that has not been read yet.
type document struct {
	end     string
	tabs    bool // tabs before a line do not count
	literal bool // the text is not expanded
}

// checkCharacters refuses characters that shells treat in different ways: control characters, and
// bytes that another character set than UTF-8 may read as part of a character.
func checkCharacters(script string) error {
	if !utf8.ValidString(script) {
		return errors.New("the script cannot be read: it is not UTF-8")
	}
	for i, c := range script {
		if c < ' ' && c != '\n' && c != '\t' || c == 0x7f {
			return fmt.Errorf("the script cannot be read: line %d has the control character %q; end lines with a line feed alone", line(script, i), c)
		}
	}
	return nil
}

func line(text string, pos int) int { return 1 + strings.Count(text[:pos], "\n") }

// ErrSyntax is the error of a script with syntax that is not understood, or of no shell script.
var ErrSyntax = errors.New("is not understood")

// fail is the error that says what was not understood here.
func (p *parser) fail(format string, args ...any) error {
	return fmt.Errorf("line %d %w: %s", line(p.text, min(p.pos, len(p.text))), ErrSyntax, fmt.Sprintf(format, args...))
}

// at returns the character at an offset from here, 0 at the end.
func (p *parser) at(offset int) byte {
	if p.pos+offset >= len(p.text) {
		return 0
	}
	return p.text[p.pos+offset]
}

// find returns what a pattern, which begins with ^, finds here; "" when it finds nothing.
func (p *parser) find(pattern *regexp.Regexp) string { return pattern.FindString(p.text[p.pos:]) }

// list reads commands up to the end, or up to the parenthesis that ends a substitution.
func (p *parser) list(substitution bool) error {
	groups := 0
	for {
		if err := p.blanks(); err != nil {
			return err
		}
		switch c := p.at(0); {
		case p.pos == len(p.text):
			if substitution || groups > 0 || len(p.documents) > 0 {
				return p.fail("a parenthesis or here document has no end")
			}
			return nil
		case c == '\n':
			p.pos++
			if err := p.readDocuments(); err != nil {
				return err
			}
		case c == '|':
			if p.at(1) == '&' {
				return p.fail("write 2>&1 | for |&")
			}
			if p.pos++; p.at(0) == '|' {
				p.pos++
			} else {
				p.hasInput = true
			}
		case c == ';', c == '&':
			if c == '&' && p.at(1) == '>' {
				return p.fail("write > file 2>&1 for &>")
			}
			p.pos++
		case c == '(':
			if p.at(1) == '(' {
				return p.fail("arithmetic in ((")
			}
			p.pos++
			groups++
		case c == ')':
			p.pos++
			if groups--; groups < 0 {
				if substitution {
					return nil
				}
				return p.fail("a parenthesis that closes nothing")
			}
		default:
			if err := p.command(); err != nil {
				return err
			}
		}
	}
}

// blanks skips blanks, comments and the ends of lines that a backslash continues.
func (p *parser) blanks() error {
	for {
		switch c := p.at(0); {
		case c == ' ', c == '\t':
			p.pos++
		case c == '\\' && p.at(1) == '\n':
			if p.pos > 0 && !strings.ContainsRune(" \t\n", rune(p.text[p.pos-1])) || len(p.documents) > 0 {
				return p.fail("a backslash at the end of a line needs a blank before it, and no here document")
			}
			p.pos += 2
		case c == '#':
			comment, _, _ := strings.Cut(p.text[p.pos:], "\n")
			if p.within > 0 || strings.HasSuffix(comment, `\`) {
				return p.fail("a comment in a substitution, or one that ends with a backslash")
			}
			p.pos += len(comment)
		default:
			return nil
		}
	}
}

var (
	assignment = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*\+?=`)
	variable   = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*`)
	braced     = regexp.MustCompile(`^\$\{([a-zA-Z_][a-zA-Z0-9_]*|[0-9@*#?$!-])\}`)
	redirected = regexp.MustCompile(`^[0-9]*(<<-|<<|>>|>\||>&|<|>)`)
	descriptor = regexp.MustCompile(`^([0-9]|-)([ \t\n;&|)]|$)`)
	delimiter  = regexp.MustCompile(`^('[a-zA-Z0-9_]+'|"[a-zA-Z0-9_]+"|[a-zA-Z0-9_]+)([ \t\n;&|)<>]|$)`)
)

// command reads a simple command, or a reserved word of a compound command.
func (p *parser) command() error {
	found := Command{}
	if err := p.simple(&found); err != nil {
		if len(found.Words) > 0 && found.Words[0].Known && len(p.script.Commands) < MaxCommands {
			found.Words = append(found.Words, Word{Text: "...", Many: true})
			p.script.Commands = append(p.script.Commands, found)
		}
		return err
	}
	if len(found.Words) == 0 {
		p.script.Assigned = append(p.script.Assigned, found.Assigned...)
		return nil
	}
	return p.reader.command(found.Words, found.Assigned, p.depth)
}

// simple reads the words and assignments of a command. It has none behind a reserved word.
func (p *parser) simple(c *Command) error {
	for first := true; ; first = false {
		if err := p.blanks(); err != nil {
			return err
		}
		if next := p.at(0); next == 0 || strings.IndexByte("\n;&|)", next) >= 0 {
			return nil
		}
		if p.find(redirected) != "" {
			if err := p.redirect(); err != nil {
				return err
			}
			continue
		}
		if name := p.find(assignment); name != "" && len(c.Words) == 0 {
			if err := p.assign(name); err != nil {
				return err
			}
			c.Assigned = append(c.Assigned, name[:len(name)-1])
			continue
		}
		start := p.pos
		word, err := p.word()
		if err != nil {
			return err
		}
		if first && word.Text == p.text[start:p.pos] {
			if is, err := p.reserved(word.Text); is || err != nil {
				return err
			}
		}
		c.Words = append(c.Words, word)
	}
}

// assign reads the value of an assignment.
func (p *parser) assign(name string) error {
	if strings.HasSuffix(name, "+=") {
		return p.fail("write x=$x... for x+=")
	}
	p.pos += len(name)
	if name = strings.TrimSuffix(name, "="); Evaluated(name) {
		return p.fail("the shell may evaluate the value of %s as code", name)
	}
	_, err := p.word()
	return err
}

// reserved reports whether an unquoted first word is a reserved word, behind which another command
// begins.
func (p *parser) reserved(word string) (is bool, err error) {
	switch word {
	case "if", "then", "elif", "else", "fi", "while", "until", "do", "done", "{", "}", "!":
		return true, nil
	case "time": // a program in some shells, with options of its own
		if err := p.blanks(); err != nil {
			return true, err
		}
		if c := p.at(0); c != 0 && strings.IndexByte(`-'"\\`, c) >= 0 {
			return true, p.fail("options of time, or quotes behind it")
		}
		return true, nil
	case "for":
		return true, p.loop()
	case "case", "esac", "select", "function", "coproc", "[[", "]]":
		return true, p.fail("%s", word)
	default:
		return false, nil
	}
}

// loop reads the variable and the words of a for.
func (p *parser) loop() error {
	if err := p.blanks(); err != nil {
		return err
	}
	name := p.find(variable)
	p.pos += len(name)
	if c := p.at(0); name == "" || Evaluated(name) || c != 0 && strings.IndexByte(" \t\n;", c) < 0 {
		return p.fail("a for without the name of a variable")
	}
	p.script.Assigned = append(p.script.Assigned, name)
	for {
		if err := p.blanks(); err != nil {
			return err
		}
		if c := p.at(0); c == 0 || c == ';' || c == '\n' {
			return nil
		}
		start := p.pos
		if err := p.mustHave("the words of a for"); err != nil || p.text[start:p.pos] == "do" {
			return err
		}
	}
}

// redirect reads a redirection.
func (p *parser) redirect() error {
	found := p.find(redirected)
	operator := strings.TrimLeft(found, "0123456789")
	fd := strings.TrimSuffix(found, operator)
	p.pos += len(found)
	switch c := p.at(0); {
	case len(fd) > 1, c != 0 && strings.IndexByte("<>&|(", c) >= 0:
		return p.fail("the redirection %s%c", found, c)
	case operator == ">&":
		if p.find(descriptor) == "" {
			return p.fail("a file behind >&; write > file 2>&1")
		}
		p.pos++
		return nil
	case operator[0] == '<':
		if fd != "" && fd != "0" {
			return p.fail("another descriptor than 0 for an input")
		}
		p.hasInput = true
	}
	if err := p.blanks(); err != nil {
		return err
	}
	if strings.HasPrefix(operator, "<<") {
		end := delimiter.FindStringSubmatch(p.text[p.pos:])
		if end == nil || p.within > 0 {
			return p.fail("a here document ends with a name of letters and digits, and stands in no substitution")
		}
		p.pos += len(end[1])
		name := strings.Trim(end[1], `'"`)
		p.documents = append(p.documents, document{end: name, tabs: operator == "<<-", literal: name != end[1]})
		return nil
	}
	return p.mustHave("the file of a redirection")
}

// mustHave reads a word that must be there.
func (p *parser) mustHave(what string) error {
	start := p.pos
	if _, err := p.word(); err != nil || p.pos > start {
		return err
	}
	return p.fail("%s", what)
}

// readDocuments reads the here documents that begin on this line.
func (p *parser) readDocuments() error {
	if len(p.documents) > 0 && p.within > 0 {
		return p.fail("a here document that begins in a substitution")
	}
	for _, doc := range p.documents {
		for {
			if p.pos == len(p.text) {
				return p.fail("the here document has no line %s", doc.end)
			}
			text, _, _ := strings.Cut(p.text[p.pos:], "\n")
			p.pos = min(p.pos+len(text)+1, len(p.text))
			if doc.tabs {
				text = strings.TrimLeft(text, "\t")
			}
			if text == doc.end {
				break
			}
			if !doc.literal && strings.ContainsAny(text, "$`\\") {
				return p.fail("quote the end of the here document, as in <<'%s', when its text has $, ` or \\", doc.end)
			}
		}
	}
	p.documents = nil
	return nil
}
