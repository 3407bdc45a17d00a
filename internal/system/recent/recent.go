// Package recent keeps the values that were used last.
package recent

import (
	"container/list"
	"sync"
)

// Cache has values by their keys, up to a number of values and a sum of their sizes. Beyond these
// bounds it drops the value that was used longest ago, but never the one that was used last. It is
// safe for concurrent use.
type Cache[K, V comparable] struct {
	most, room int

	mu    sync.Mutex
	of    map[K]*list.Element // whose value is an entry
	order list.List           // the one that was used last in front
	size  int                 // of all values
}

type entry[K, V comparable] struct {
	key   K
	value V
	size  int
}

// New returns a cache of at most so many values, whose sizes are at most room together.
func New[K, V comparable](most, room int) *Cache[K, V] {
	return &Cache[K, V]{most: most, room: room, of: map[K]*list.Element{}}
}

// Get uses the value of a key.
func (c *Cache[K, V]) Get(key K) (value V, is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.use(key); e != nil {
		return e.value, true
	}
	return value, false
}

// Make uses the value of a key, which it makes if there is none. A value that was made has no size,
// and drops no other value before [Cache.Resize].
func (c *Cache[K, V]) Make(key K, begin func() V) V {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.use(key)
	if e == nil {
		e = c.add(key)
		e.value = begin()
	}
	return e.value
}

// Put uses and replaces the value of a key.
func (c *Cache[K, V]) Put(key K, value V, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.use(key)
	if e == nil {
		e = c.add(key)
	}
	e.value = value
	c.resize(e, size)
}

// Resize sets the size of a value, if it is still that of the key.
func (c *Cache[K, V]) Resize(key K, value V, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := entryOf[K, V](c.of[key]); e != nil && e.value == value {
		c.resize(e, size)
	}
}

// Drop drops a value, if it is still that of the key.
func (c *Cache[K, V]) Drop(key K, value V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := entryOf[K, V](c.of[key]); e != nil && e.value == value {
		c.drop(e)
	}
}

// Len is the number of values.
func (c *Cache[K, V]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.order.Len()
}

// use is the entry of a key, which it moves to the front; nil without one.
func (c *Cache[K, V]) use(key K) *entry[K, V] {
	at := c.of[key]
	if at == nil {
		return nil
	}
	c.order.MoveToFront(at)
	return entryOf[K, V](at)
}

func (c *Cache[K, V]) add(key K) *entry[K, V] {
	e := &entry[K, V]{key: key}
	c.of[key] = c.order.PushFront(e)
	return e
}

func (c *Cache[K, V]) resize(e *entry[K, V], size int) {
	c.size += size - e.size
	e.size = size
	for c.order.Len() > 1 && (c.order.Len() > c.most || c.size > c.room) {
		c.drop(entryOf[K, V](c.order.Back()))
	}
}

func (c *Cache[K, V]) drop(e *entry[K, V]) {
	c.order.Remove(c.of[e.key])
	delete(c.of, e.key)
	c.size -= e.size
}

func entryOf[K, V comparable](at *list.Element) *entry[K, V] {
	if at == nil {
		return nil
	}
	e, _ := at.Value.(*entry[K, V])
	return e
}
