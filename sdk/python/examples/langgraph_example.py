"""A graph of LangGraph whose commands run in a sandbox."""

import asyncio

from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from toolfleet import AsyncClient
from toolfleet.langchain import fleet_tools


async def main() -> None:
    async with await AsyncClient.from_embedded(workspace=".") as client:
        tools = await fleet_tools(client, only=["bash", "read", "write"])
        model = ChatOpenAI(model="gpt-5").bind_tools(tools)

        async def think(state: MessagesState) -> dict[str, list[object]]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("think", think)
        graph.add_node("tools", ToolNode(tools))
        graph.add_edge(START, "think")
        graph.add_conditional_edges("think", tools_condition)
        graph.add_edge("tools", "think")
        result = await graph.compile().ainvoke({"messages": [("user", "Which files are here? Count them.")]})
        print(result["messages"][-1].content)


asyncio.run(main())
