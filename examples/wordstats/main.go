// Command wordstats counts the words of a file, or of standard input.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"example.com/wordstats/text"
)

func main() {
	top := flag.Int("top", 5, "how many of the most frequent words to show")
	flag.Parse()
	if err := run(os.Stdout, os.Stdin, flag.Arg(0), *top); err != nil {
		fmt.Fprintln(os.Stderr, "wordstats:", err)
		os.Exit(1)
	}
}

// run measures the named file, or in when there is no name.
func run(out io.Writer, in io.Reader, name string, top int) error {
	if name != "" {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	content, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	stats := text.Measure(string(content))
	fmt.Fprintf(out, "%d words, %d different, %s to read\n",
		stats.Words, stats.Different, stats.ReadingTime().Round(time.Second))
	for _, word := range stats.Top(top) {
		fmt.Fprintf(out, "%4d  %s\n", word.Count, word.Word)
	}
	return nil
}
