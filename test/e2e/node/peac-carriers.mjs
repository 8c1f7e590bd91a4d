// Has PEAC's own packages judge the carriers that answers bear. Reads
// {name: {carrier, transport, key}} as JSON on stdin, the key in base64url, and prints
// {name: what is wrong, or null}.
import * as C from '@peac/crypto'
import * as S from '@peac/schema'

async function judge({ carrier, transport, key }) {
  const parsed = S.PeacEvidenceCarrierSchema.safeParse(carrier)
  if (!parsed.success) return parsed.error.issues[0].message
  const limit = { mcp: 65536, a2a: 65536, http: 8192, grpc: 8192 }[transport]
  const { valid, violations } = S.validateCarrierConstraints(carrier, { transport, format: 'embed', max_size: limit })
  if (!valid) return violations.join(', ')
  const mismatch = await S.verifyReceiptRefConsistency(carrier)
  if (mismatch) return mismatch
  const signed = await C.verify(carrier.receipt_jws, new Uint8Array(Buffer.from(key, 'base64url')))
  return signed.valid ? null : 'signature'
}

let text = ''
for await (const chunk of process.stdin) text += chunk
const verdicts = {}
for (const [name, input] of Object.entries(JSON.parse(text))) {
  verdicts[name] = await judge(input).catch((e) => e.message)
}
console.log(JSON.stringify(verdicts))
