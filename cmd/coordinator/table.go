package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// printTable prints the cells of a row for each value, below the names of the columns.
func printTable[T any](out io.Writer, list []T, columns string, cells func(*T) []any) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, columns) // Flush tells of errors
	for i := range list {
		row := cells(&list[i])
		_, _ = fmt.Fprintf(table, strings.Repeat("%v\t", len(row)-1)+"%v\n", row...)
	}
	return table.Flush()
}

// printList prints what a command lists: JSON, a table, or a sentence that there is nothing.
func printList[T any](p program, asJSON bool, list []T, nothing, columns string, cells func(*T) []any) error {
	switch {
	case asJSON:
		return printJSON(p, append([]T{}, list...))
	case len(list) == 0 && nothing != "":
		_, err := fmt.Fprintln(p.out(), nothing)
		return err
	}
	return printTable(p.out(), list, columns, cells)
}
