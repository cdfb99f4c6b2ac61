/** Count words, which stand in for the tokens of a model. */
export function countWords(text: string): number {
  return text.split(/\s+/).filter(Boolean).length;
}
