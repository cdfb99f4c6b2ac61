interface Context {
  capabilities: { codeInterpreter: boolean; browser: boolean };
  // Cloudflare lends no tools.
  tools?: {
    codeInterpreter: { run(code: string, options?: { language: string }): Promise<{ text: string; isError: boolean }> };
    browser: { open(): Promise<{ sessionId: string; url: string; close(): Promise<void> }> };
  };
}

/** Run a tool, or say that there is none: whether it is lent may change at any moment. */
async function used(isAllowed: boolean, use: () => Promise<string>): Promise<string> {
  if (!isAllowed) return "unavailable";
  try {
    return await use();
  } catch (error) {
    if ((error as Error).name === "ToolUnavailableError") return "unavailable";
    throw error;
  }
}

/** Compute something, open a browser, and say which of it could be done. */
export default async function agent(_request: unknown, { capabilities, tools }: Context): Promise<{ text: string }> {
  const computed = await used(capabilities.codeInterpreter, async () => {
    const { text } = await tools!.codeInterpreter.run("print(6 * 7)", { language: "python" });
    return text.trim();
  });
  const browsed = await used(capabilities.browser, async () => {
    const browser = await tools!.browser.open();
    await browser.close();
    return "opened";
  });
  return { text: `code interpreter: ${computed} | browser: ${browsed}` };
}
