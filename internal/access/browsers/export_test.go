package browsers

// Read reads the record, and returns what applies it.
func (b *Book) Read() (apply func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now
	return func() { b.apply(now) }
}
