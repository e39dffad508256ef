# fastapi_shop.py
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from orders import Order, confirm, get_session, tables, tasks
from sqlalchemy.ext.asyncio import AsyncSession

from fairlead.contrib.fastapi import Submitter, lifespan, submitter

# scope="function": the commit comes before the response, not after it
SessionDep = Annotated[AsyncSession, Depends(get_session, scope="function")]
Tasks = Annotated[Submitter, submitter(SessionDep)]

site = FastAPI(lifespan=lifespan(tasks, tables))


@site.post("/orders/{number}", status_code=201)
async def place_order(number: int, session: SessionDep, tasks: Tasks) -> None:
    session.add(Order(id=number))
    await tasks.submit_async(confirm, order=number)
    if number % 3 == 0:
        raise HTTPException(409, "sold out")  # neither the order nor its task exists
