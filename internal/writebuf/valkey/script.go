package valkey

import (
	"crypto/sha1" //nolint:gosec // what the server names its scripts by
	"encoding/hex"
)

// script is a program that the server runs in one piece. Both keys of a partition are its keys: the stream first, then
// the record, which is "generation floor last" in decimal.
type script struct{ text, sha string }

func newScript(text string) script {
	sum := sha1.Sum([]byte(prelude + text)) //nolint:gosec // as above
	return script{prelude + text, hex.EncodeToString(sum[:])}
}

// prelude reads the record and refuses what holds something else. T is what the stream is called in the middle of an append
// that is a transaction (see beginScript). A stream that is still called so was left by one that was none, because the server
// took its commands one by one and not all of them: it gets its name back. T is not among the keys that a call names: it
// hardly ever is there, and the node of a cluster that gives a slot away runs nothing that names a key it has not.
const prelude = `
local S, G, T = KEYS[1], KEYS[2], string.sub(KEYS[1], 1, -2) .. 't'
local aside = redis.pcall('XLEN', T)
aside = type(aside) == 'number' and aside > 0 and redis.call('XLEN', S) == 0
if aside then redis.call('RENAME', T, S) end
local known, gen, floor, last = 0, 0, 0, 0
local function str(n) return string.format('%.0f', n) end
local function record()
  local w = redis.call('GET', G)
  if not w then return true end
  local a, b, c = string.match(w, '^(%d+) (%d+) (%d+)$')
  if not a then return false end
  known, gen, floor, last = 1, tonumber(a), tonumber(b), tonumber(c)
  return true
end
local function write() redis.call('SET', G, str(gen) .. ' ' .. str(floor) .. ' ' .. str(last)) end
if not record() then return {'FOREIGN'} end
`

const fenced = `
local mine = tonumber(ARGV[1])
if gen > mine then return {'FENCED', str(gen)} end
gen = mine
`

// Invariant of append: entries are added only where those of [floor, last] are all there and the first one added is
// last + 1. The length of the stream is proof of that, because trimming moves the recorded floor in the same step, and
// because a replica gets both keys' changes in one piece. The record is written even where nothing is added: a server
// counts replicas up to the last write of the connection that asks, and an append that is made again has to be waited for
// like the first (with a trim that removes nothing, see evenFull). Who has written before finds a record; where there is none
// the server has forgotten who may write, which is not for an append to say again: somebody may have taken over. XADD comes before anything else that writes: once a script has written, a full server lets it write on.
var appendScript = newScript(fenced + `
local want, seq = tonumber(ARGV[2]), tonumber(ARGV[3])
local n = #ARGV - 4
local low = floor
if want > low then low = want end
if known == 0 and ARGV[4] == '1' then return {'RESET', str(low)} end
local i = 1
if seq < low then i = low - seq + 1 end
if i > n then redis.call('XTRIM', S, 'MINID', '0') write() return {'OK'} end
local len = redis.call('XLEN', S)
local drop = false
if known == 0 or floor == 0 then
  if len > 0 then return {'RESET', str(low)} end
  floor, last = low, low - 1
elseif last + 1 < low then
  drop = true
elseif len ~= last - floor + 1 then
  return {'RESET', str(low)}
end
local tail = last
if drop then tail = low - 1 end
if seq + i - 1 > tail + 1 then return {'NEXT', str(tail + 1)} end
while i <= n and seq + i - 1 <= tail do
  local id = str(seq + i - 1) .. '-0'
  local rows = redis.call('XRANGE', S, id, id)
  if #rows == 0 then return {'RESET', str(low)} end
  local f = rows[1][2]
  if #f ~= 2 or f[1] ~= 'f' or f[2] ~= ARGV[i + 4] then return {'CORRUPT', str(seq + i - 1)} end
  i = i + 1
end
if i > n then redis.call('XTRIM', S, 'MINID', '0') end
while i <= n do
  redis.call('XADD', S, str(seq + i - 1) .. '-0', 'f', ARGV[i + 4])
  last = seq + i - 1
  i = i + 1
end
if drop then
  floor = low
  redis.call('XTRIM', S, 'MINID', str(floor))
end
write()
return {'OK'}
`)

// An append as a transaction: beginScript, which takes the stream aside, an XADD for each frame that does nothing where no
// stream stands aside, and endScript, which puts it back. So no frame passes through the scripts' language, which costs the
// server more than all the rest. It is for the plain case: the record is there and has the caller's generation, all that it
// names is there, and the first frame is the next one. In every other nothing is taken aside and nothing done; then
// appendScript is asked, which also says what is wrong. The length tells endScript whether each XADD has done its part.
var beginScript = newScript(`
if known == 0 or floor == 0 or gen ~= tonumber(ARGV[1]) or tonumber(ARGV[2]) > last + 1 or tonumber(ARGV[3]) ~= last + 1
  or redis.call('XLEN', S) ~= last - floor + 1 then return {'OTHER'} end
redis.call('RENAME', S, T)
return {'OK'}
`)

var endScript = newScript(`
last = last + tonumber(ARGV[1])
if not aside or redis.call('XLEN', S) ~= last - floor + 1 then return {'OTHER'} end
write()
return {'OK'}
`)

// The trim to 0 removes nothing. It makes the script one that has written, so that a server that is full takes the record.
const evenFull = `
redis.call('XTRIM', S, 'MINID', '0')
`

// A server that takes no writes is not the primary, or does not serve: what it has is not what there is. The trim to 0 asks it.
const primary = evenFull

const look = `
local function state()
  local len, first, stop = redis.call('XLEN', S), '', ''
  if len > 0 then
    first = redis.call('XRANGE', S, '-', '+', 'COUNT', 1)[1][1]
    stop = redis.call('XREVRANGE', S, '+', '-', 'COUNT', 1)[1][1]
  end
  return {'OK', known, str(gen), str(floor), str(last), len, first, stop}
end
`

var fenceScript = newScript(look + `
local before = state()
` + fenced + evenFull + `
write()
return before
`)

var boundsScript = newScript(look + primary + `
return state()
`)

var trimScript = newScript(fenced + `
local below = tonumber(ARGV[2])
if floor == 0 then return {'OK'} end
if below > last + 1 then below = last + 1 end
if below <= floor then return {'OK'} end
floor = below
redis.call('XTRIM', S, 'MINID', str(floor))
write()
return {'OK'}
`)

var resetScript = newScript(fenced + evenFull + `
redis.call('UNLINK', S)
floor, last = 0, 0
write()
return {'OK'}
`)

// deleteScript leaves a record that no generation reaches, for as long as an append of a broker that does not know of the
// deletion may be on its way. What is deleted already is deleted again, since an answer may have been lost.
var deleteScript = newScript(`
if gen == 4294967296 then gen = 0 end
` + fenced + evenFull + `
redis.call('UNLINK', S)
redis.call('SET', G, '4294967296 0 0', 'EX', 604800)
return {'OK'}
`)

// readScript returns entries up to a number of bytes, which no command does. It asks for a few more than it has seen to fit,
// so that large entries behind small ones do not fill the server's memory.
var readScript = newScript(primary + `
local most, room = tonumber(ARGV[2]), tonumber(ARGV[3])
local from, out, ask = ARGV[1], {}, 1
while #out < most do
  if ask > most - #out then ask = most - #out end
  local rows = redis.call('XRANGE', S, from, '+', 'COUNT', ask)
  local size = 0
  for _, r in ipairs(rows) do
    size = 0
    for _, v in ipairs(r[2]) do size = size + #v end
    if #out > 0 and size > room then return {'OK', known, str(gen), str(floor), str(last), redis.call('XLEN', S), 0, out} end
    room = room - size
    out[#out + 1] = r
  end
  if #rows < ask then return {'OK', known, str(gen), str(floor), str(last), redis.call('XLEN', S), 1, out} end
  from = '(' .. rows[#rows][1]
  local fit = math.floor(room / (size + 1))
  ask = 2 * ask
  if ask > fit then ask = fit end
  if ask < 1 then ask = 1 end
  if ask > 64 then ask = 64 end
end
return {'OK', known, str(gen), str(floor), str(last), redis.call('XLEN', S), 0, out}
`)

// recordScript returns what readScript does, without entries.
var recordScript = newScript(primary + `
return {'OK', known, str(gen), str(floor), str(last), redis.call('XLEN', S)}
`)

var scripts = []script{appendScript, beginScript, endScript, fenceScript, boundsScript, trimScript, resetScript, deleteScript, readScript, recordScript}
